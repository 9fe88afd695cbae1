"""The log of an attempt that has ended, compressed: one file in Zstandard's seekable
format, so that any part of it can be read without the rest, and `zstd -d` reads it all.

It has the offsets of the log. The front that a capped log has lost is a skippable frame
with its length. Another, behind the segments, has the words of each segment, so that a
search for a text reads only those that may have it. Every other frame is a segment.
"""

import os
import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TypeVar

import zstandard

from gpuyard.domain.log_query import Choice
from gpuyard.storage.logfile import LogFile, start_of_last
from gpuyard.storage.untrusted import UntrustedFileError

SEGMENT = 1 << 20
_LEVEL = 3
_FRONT = struct.Struct("<IIQ")
_FRONT_MAGIC = 0x184D2A50
_WORDS_MAGIC = 0x184D2A51
_WORD = re.compile(rb"[A-Za-z]{3,}")
# So much of the next segment counts as well: more than a text that is looked for.
_AROUND = 1 << 13
# Of one segment; one with more, such as random text, is always read.
_MOST_WORDS = 1 << 14
_MANY = b"\0"
_PIECE = 1 << 15
_TABLE_HEAD = struct.Struct("<II")
_TABLE_MAGIC = 0x184D2A5E
_ENTRY = struct.Struct("<II")
_FOOTER = struct.Struct("<IBI")
_FOOTER_MAGIC = 0x8F92EAB1
# Of a log of a terabyte.
_MOST_SEGMENTS = 1 << 20
Result = TypeVar("Result")


def packed_path(log: Path) -> Path:
    """Where the log at `log` is once it is compressed."""
    return log.with_name(f"{log.name}.zst")


def draft_path(log: Path) -> Path:
    """What a compression has written that is not complete."""
    return log.with_name(f"{log.name}.draft")


def stored_log(log: Path) -> LogFile:
    """The log at `log`, of which nobody writes more: as it is, or compressed."""
    packed = packed_path(log)
    return PackedLog(packed) if packed.exists() else LogFile(log)


def with_stored_log(log: Path, use: Callable[[LogFile], Result]) -> Result:
    """Use the log at `log`, which may be compressed while it is used."""
    try:
        return use(stored_log(log))
    except FileNotFoundError:
        if not packed_path(log).exists():
            raise
        return use(stored_log(log))


def pack(log: Path) -> None:
    """Compress the log at `log`, which nobody writes to, and remove it. OSError.

    Whenever this is killed, the whole log is there: the compressed one appears when it
    is complete and on the disk, and only then the other one goes.
    """
    source = LogFile(log)
    target = packed_path(log)
    draft = draft_path(log)
    status = log.lstat()
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
        _write(source, file)
        file.flush()
        os.fsync(file.fileno())
    # Its age counts from the end of the attempt.
    os.utime(draft, ns=(status.st_atime_ns, status.st_mtime_ns))
    draft.replace(target)
    log.unlink()


def _write(source: LogFile, target: IO[bytes]) -> None:
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
    offset = source.start()
    target.write(_FRONT.pack(_FRONT_MAGIC, 8, offset))
    entries = [_ENTRY.pack(_FRONT.size, 0)]
    words: list[bytes] = []
    while True:
        _, data = source.read(offset, SEGMENT)
        if not data:
            break
        offset += len(data)
        _, behind = source.read(offset, _AROUND)
        words.append(_words_of(data + behind))
        frame = compressor.compress(data)
        target.write(frame)
        entries.append(_ENTRY.pack(len(frame), len(data)))
    index = compressor.compress(b"\1".join(words))
    target.write(_TABLE_HEAD.pack(_WORDS_MAGIC, len(index)) + index)
    entries.append(_ENTRY.pack(_TABLE_HEAD.size + len(index), 0))
    table = b"".join(entries)
    target.write(_TABLE_HEAD.pack(_TABLE_MAGIC, len(table) + _FOOTER.size))
    target.write(table + _FOOTER.pack(len(entries), 0, _FOOTER_MAGIC))


def _words_of(data: bytes) -> bytes:
    """The different words in it, each on a line; `_MANY` if there are too many."""
    found: set[bytes] = set()
    # In pieces, so that other threads have their turn. A word that is cut is in one of
    # them whole, because they overlap by more than any word that counts.
    for begin in range(0, len(data), _PIECE):
        found.update(_WORD.findall(data[begin : begin + _PIECE + 64]))
    words = b"\n".join(sorted(found))
    return words if len(words) <= _MOST_WORDS else _MANY


class PackedLog(LogFile):
    """Reads a compressed log as if it were the log itself."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with self._open() as file:
            self._front, sizes = _table(file)
        # The frame with the words holds no bytes of the log.
        sizes = [(packed, length) for packed, length in sizes if length]
        self._lengths = [length for _, length in sizes]
        self._places = [0]
        self._offsets = [self._front]
        for compressed, length in sizes:
            self._places.append(self._places[-1] + compressed)
            self._offsets.append(self._offsets[-1] + length)
        self._known_words: list[bytes] | None = None
        # Most reads go on in the segment of the one before.
        self._last: tuple[int, bytes] = (-1, b"")

    def size(self) -> int:
        """See LogFile."""
        return self._offsets[-1]

    def start(self) -> int:
        """See LogFile."""
        return self._front

    def read(self, offset: int, limit: int) -> tuple[int, bytes]:
        """See LogFile."""
        first = max(offset, self._front)
        wanted = min(limit, self.size() - first)
        numbers = self._segments(first, first + wanted)
        parts = [self._segment(number) for number in numbers]
        if not parts:
            return first, b""
        begin = first - self._offsets[self._number(first)]
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        return first, data[begin : begin + wanted]

    def tail(self, lines: int, limit: int = 1 << 20) -> tuple[int, bytes]:
        """See LogFile."""
        size = self.size()
        length = 0
        first = size
        data = b""
        while size - first < limit and first > self._front:
            length = min(limit, max(1 << 16, length * 4))
            first, data = self.read(max(size - length, self._front), length)
            if data.count(b"\n") > lines:
                break
        begin = start_of_last(lines, data)
        return first + begin, data[begin:]

    def next_with(
        self, choices: Sequence[Choice], offset: int, *, ignore_case: bool = False
    ) -> int:
        """The first offset, at `offset` or behind it, where a line may go on that has
        one list of texts of each choice; the size if none does. Segments without their
        words are not read.
        """
        wanted = [_words_wanted(choice, ignore_case) for choice in choices]
        wanted = [choice for choice in wanted if choice]
        if not wanted:
            return offset
        words = self._words(ignore_case)
        # A line that goes on in the next segment may have some texts here, some there.
        texts = sum(len(texts) for choice in choices for texts in choice)
        around = 1 if texts > 1 else 0
        number = max(self._number(offset), 0)
        while number < len(words):
            near = words[max(number - around, 0) : number + around + 1]
            if all(_may_have(near, choice) for choice in wanted):
                return max(offset, self._offsets[number])
            number += 1
        return self.size()

    def _words(self, ignore_case: bool) -> list[bytes]:
        """The words of each segment, in lower case to `ignore_case`."""
        if ignore_case:
            return [words.lower() for words in self._words(False)]
        if self._known_words is None:
            count = len(self._lengths)
            with self._open() as file:
                index = _index(file, self._places[count] + _FRONT.size)
            self._known_words = index if len(index) == count else [_MANY] * count
        return self._known_words

    def _number(self, offset: int) -> int:
        """The segment with the byte at `offset`."""
        return bisect_right(self._offsets, offset) - 1

    def _segments(self, first: int, end: int) -> Iterator[int]:
        """Those with the bytes from `first` to `end`."""
        number = self._number(first)
        while first < end and number < len(self._places) - 1:
            if self._offsets[number] >= end:
                return
            yield number
            number += 1

    def _segment(self, number: int) -> bytes:
        known, data = self._last
        if known == number:
            return data
        length = self._offsets[number + 1] - self._offsets[number]
        place = self._places[number] + _FRONT.size
        with self._open() as file:
            size = self._places[number + 1] - self._places[number]
            frame = os.pread(file.fileno(), size, place)
        try:
            data = zstandard.ZstdDecompressor().decompress(frame, length)
        except zstandard.ZstdError as error:
            raise UntrustedFileError(f"{self.path} is damaged") from error
        if len(data) != length:
            raise UntrustedFileError(f"{self.path} is damaged")
        self._last = (number, data)
        return data


def _words_wanted(choice: Choice, ignore_case: bool) -> list[list[bytes]]:
    """The words of each list of texts; empty if one of these has none."""
    found: list[list[bytes]] = []
    for texts in choice:
        # Parts of longer words count, and so do the words at the ends of a text.
        words = [word[:64] for text in texts for word in _WORD.findall(text)]
        if not words:
            return []
        found.append([word.lower() for word in words] if ignore_case else words)
    return found


def _may_have(near: Sequence[bytes], choice: Sequence[Sequence[bytes]]) -> bool:
    """Whether segments with these words may have one of the lists of words."""
    if _MANY in near:
        return True
    return any(
        all(any(word in words for words in near) for word in wanted)
        for wanted in choice
    )


def _index(file: IO[bytes], place: int) -> list[bytes]:
    """The words of each segment; none where they cannot be read."""
    head = os.pread(file.fileno(), _TABLE_HEAD.size, place)
    if len(head) < _TABLE_HEAD.size:
        return []
    magic, size = _TABLE_HEAD.unpack(head)
    if magic != _WORDS_MAGIC:
        return []
    frame = os.pread(file.fileno(), size, place + _TABLE_HEAD.size)
    try:
        index = zstandard.ZstdDecompressor().decompress(frame)
    except zstandard.ZstdError:
        return []
    return index.split(b"\1")


def _table(file: IO[bytes]) -> tuple[int, list[tuple[int, int]]]:
    """The offset of the first byte, and the sizes of the segments: compressed, and as
    they are. UntrustedFileError if the file is no whole compressed log.
    """
    descriptor = file.fileno()
    size = os.fstat(descriptor).st_size
    footer = os.pread(descriptor, _FOOTER.size, max(size - _FOOTER.size, 0))
    front = os.pread(descriptor, _FRONT.size, 0)
    if len(footer) == _FOOTER.size and len(front) == _FRONT.size:
        count, _, magic = _FOOTER.unpack(footer)
        begin = size - _FOOTER.size - count * _ENTRY.size
        if magic == _FOOTER_MAGIC and 0 < count <= _MOST_SEGMENTS and begin > 0:
            table = os.pread(descriptor, count * _ENTRY.size, begin)
            entries = list(_ENTRY.iter_unpack(table))
            return _FRONT.unpack(front)[2], entries[1:]
    raise UntrustedFileError(f"{file.name} is no whole compressed log")
