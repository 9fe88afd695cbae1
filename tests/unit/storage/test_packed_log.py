"""Compressed logs are read as if they were the logs themselves."""

import os
import random
from pathlib import Path

import pytest
import zstandard

from gpuyard.storage import packed_log
from gpuyard.storage.logfile import LogFile
from gpuyard.storage.packed_log import PackedLog, pack, packed_path, with_stored_log
from gpuyard.storage.untrusted import UntrustedFileError

LINES = b"".join(b"line %d of the log\n" % n for n in range(300_000))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "attempt_1.log"
    path.write_bytes(LINES + b"the end")
    return path


def test_any_part_is_what_it_was(log: Path) -> None:
    plain = log.read_bytes()
    tails = {lines: LogFile(log).tail(lines) for lines in (0, 1, 2, 5000)}
    pack(log)
    assert not log.exists()
    packed = PackedLog(packed_path(log))
    assert packed_path(log).stat().st_size < len(plain) / 4
    assert (packed.start(), packed.size()) == (0, len(plain))
    places = random.Random(1)
    for _ in range(30):
        first = places.randrange(len(plain))
        limit = places.choice([1, 999, 3_000_000])
        assert packed.read(first, limit) == (first, plain[first : first + limit])
    assert packed.read(len(plain), 10) == (len(plain), b"")
    assert {lines: packed.tail(lines) for lines in tails} == tails


def test_other_programs_read_it_as_well(log: Path) -> None:
    plain = log.read_bytes()
    pack(log)
    with packed_path(log).open("rb") as file:
        reader = zstandard.ZstdDecompressor().stream_reader(
            file, read_across_frames=True
        )
        assert reader.read() == plain


def test_a_log_without_its_front_keeps_its_offsets(log: Path) -> None:
    if not LogFile(log).cap(1 << 20):
        pytest.skip("this file system cannot free a part of a file")
    start = LogFile(log).start()
    wanted = LogFile(log).read(0, 100)
    pack(log)
    packed = PackedLog(packed_path(log))
    assert (packed.start(), packed.read(0, 100)) == (start, wanted)
    assert start > 0


def test_a_text_is_where_its_words_are(tmp_path: Path) -> None:
    log = tmp_path / "attempt_1.log"
    size = packed_log.SEGMENT
    # The second one stands across the border of two segments.
    text = b"a needle here"
    data = bytearray(b"0 to 9\n" * (5 * size // 7))
    for place in (100, 3 * size - 6):
        data[place : place + len(text)] = text
    log.write_bytes(data)
    pack(log)
    packed = PackedLog(packed_path(log))

    def next_with(text: bytes, offset: int, **how: bool) -> int:
        return packed.next_with([((text,),)], offset, **how)

    places = [next_with(b"eedle he", at) for at in (0, 50, size + 5, 4 * size)]
    assert places == [0, 50, 2 * size, len(data)]
    assert next_with(b"to 9", size + 5) == size + 5
    assert next_with(b"missing", 0) == len(data)
    assert next_with(b"EEDLE", size + 5) == len(data)
    assert next_with(b"EEDLE", size + 5, ignore_case=True) == 2 * size
    either = ((b"missing",), (b"nee", b"her"))
    assert packed.next_with([either], 3 * size) == 3 * size
    # Where there is more than one text, the line may go on in the next segment.
    assert packed.next_with([either], size + 5) == size + 5
    assert packed.next_with([either, ((b"no word",),)], 0) == len(data)


class KilledError(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("call", ["fsync", "utime", "rename", "unlink"])
def test_a_kill_while_it_is_compressed_loses_nothing(
    log: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = log.read_bytes()

    def kill(*_: object, **__: object) -> None:
        raise KilledError

    with monkeypatch.context() as patched, pytest.raises(KilledError):
        if call in ("fsync", "utime"):
            patched.setattr(packed_log.os, call, kill)
        else:
            patched.setattr(Path, {"rename": "replace"}.get(call, call), kill)
        pack(log)
    size = len(plain)
    assert with_stored_log(log, lambda it: it.read(0, size)) == (0, plain)
    if log.exists():
        pack(log)
    assert with_stored_log(log, lambda it: it.read(0, size)) == (0, plain)


def test_a_log_that_is_compressed_while_it_is_read(log: Path) -> None:
    plain = log.read_bytes()

    def use(found: LogFile) -> bytes:
        if log.exists():
            pack(log)
        return found.read(0, len(plain))[1]

    assert with_stored_log(log, use) == plain


@pytest.mark.parametrize("damage", ["cut", "altered", "empty"])
def test_a_damaged_one_is_refused(log: Path, damage: str) -> None:
    pack(log)
    path = packed_path(log)
    if damage == "altered":
        with path.open("r+b") as file:
            os.pwrite(file.fileno(), b"x" * 50, 100)
    else:
        os.truncate(path, 0 if damage == "empty" else path.stat().st_size - 1)
    with pytest.raises(UntrustedFileError, match="log"):
        PackedLog(path).read(0, 1000)
