"""Uploads a dataset: chunk by chunk, and none that the server has already. So an upload
that was killed goes on where it was.

The work is a generator of calls, which each client carries in its own way.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuyard.client import dataset_calls
from gpuyard.client.calls import Call
from gpuyard.domain.datasets import Dataset, Manifest, chunk_sizes, path_fault
from gpuyard.domain.errors import InvalidInputError, RefusedError, quoted

# So many chunks are on their way at the same time, as many are asked about, and as many
# are read ahead.
_CHUNKS_AT_ONCE = 4
# Calls at the same time: the question about the next chunks goes with the chunks.
AT_ONCE = _CHUNKS_AT_ONCE + 1
# So many calls may be unanswered when the next ones begin: so there is always one that
# can be carried, and never more of the data in memory than of three batches.
MOST_OPEN = _CHUNKS_AT_ONCE
# A version whose chunks somebody removes meanwhile is sent again so many times.
_TRIES = 3
Tell = Callable[[int, int], None]
"""Is told how many bytes of how many are stored."""
Batch = Sequence[Call[Any]]
"""Calls that begin now. The answer to the first is wanted; the others may go on while
those of the next batches begin. An empty batch means that all must be answered."""
Group = list[tuple[str, bytes]]
"""Chunks, each with its SHA-256."""
Upload = Generator[Batch, list[Any], Dataset]
"""Gives calls, and takes the answer to the first of each batch."""


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file to be uploaded: its path in the dataset, and where it is."""

    path: str
    source: Path
    size: int
    executable: bool


def upload(
    project: str,
    name: str,
    path: Path,
    tell: Tell,
    only: Sequence[str] | None = None,
) -> Upload:
    """Upload a file or a folder as the next version of a dataset; `only` these files of
    it, by their paths in the folder. InvalidInputError for what cannot be in one;
    RefusedError if a file changes meanwhile.
    """
    files = files_of(path, only)
    tries = 0
    while True:
        tries += 1
        manifest = yield from _send_chunks(project, name, files, tell)
        try:
            (dataset,) = yield [dataset_calls.add_version(project, name, manifest)]
        except RefusedError:
            if tries == _TRIES:
                raise
        else:
            return dataset


def advance(
    work: Upload, answers: list[Any] | RefusedError | None = None
) -> Batch | Dataset:
    """The next calls, after the `answers` to those before, of which the first counts,
    or the refusal of one; at the end, the dataset.
    """
    try:
        if isinstance(answers, RefusedError):
            return work.throw(answers)
        return work.send(answers)  # pyright: ignore[reportArgumentType]  (None begins it)
    except StopIteration as end:
        return end.value


def _send_chunks(
    project: str, name: str, files: Sequence[LocalFile], tell: Tell
) -> Generator[Batch, list[Any], Manifest]:
    """Send what the server does not have; what the version holds.

    While chunks are sent, it is asked which of the next ones it has.
    """
    total = sum(file.size for file in files)
    stored = 0
    coming = 0
    chunks: list[tuple[str, int]] = []
    sent: set[str] = set()
    sending: list[Call[Any]] = []
    for group in _ahead(_groups(_chunks(files))):
        named = dict(group)
        question = dataset_calls.missing(project, name, list(named))
        answers = yield [question, *sending]
        stored += coming
        tell(stored, total)
        wanted = [each for each in named if each in answers[0] and each not in sent]
        sending = [
            dataset_calls.store(project, name, digest, named[digest])
            for digest in wanted
        ]
        sent.update(wanted)
        chunks += [(digest, len(content)) for digest, content in group]
        coming = sum(len(content) for _, content in group)
    if sending:
        yield sending
    yield []
    if chunks:
        tell(total, total)
    return Manifest([(it.path, it.size, it.executable) for it in files], chunks)


def _ahead(groups: Iterator[Group]) -> Iterator[Group]:
    """The groups; the next one is read and hashed while one is sent."""
    with ThreadPoolExecutor(1, "read-ahead") as thread:
        coming = thread.submit(next, groups, None)
        while group := coming.result():
            coming = thread.submit(next, groups, None)
            yield group


def _groups(chunks: Iterator[bytes]) -> Iterator[Group]:
    group: Group = []
    for chunk in chunks:
        group.append((hashlib.sha256(chunk).hexdigest(), chunk))
        if len(group) == _CHUNKS_AT_ONCE:
            yield group
            group = []
    if group:
        yield group


def _chunks(files: Sequence[LocalFile]) -> Iterator[bytes]:
    """The content of the files, cut into chunks; RefusedError if one has changed."""
    stream = _FileStream(files)
    for size in chunk_sizes([(file.path, file.size) for file in files]):
        yield stream.read(size)
    stream.end()


class _FileStream:
    """The files, one behind the other."""

    def __init__(self, files: Sequence[LocalFile]) -> None:
        self._wanted = 0
        self._parts = self._read(files)

    def read(self, size: int) -> bytes:
        """The next bytes. A chunk of one file is read at once, and not copied."""
        parts: list[bytes] = []
        self._wanted = size
        while self._wanted:
            part = next(self._parts)
            parts.append(part)
            self._wanted -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def end(self) -> None:
        """All was read: look at the last files."""
        for _ in self._parts:
            pass

    def _read(self, files: Sequence[LocalFile]) -> Iterator[bytes]:
        for file in files:
            left = file.size
            with _opened(file.source) as source:
                while left and (part := source.read(min(left, self._wanted))):
                    left -= len(part)
                    yield part
                if left or source.read(1):
                    raise RefusedError(
                        f"{file.source} changed while it was read.",
                        "Run it again when nothing writes there.",
                    )


def _opened(path: Path) -> Any:
    """The file; no link that took its place meanwhile, and no pipe."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        raise _unreadable(path, error) from None
    return os.fdopen(descriptor, "rb", buffering=0)


# --- which files ---


def files_of(path: Path, only: Sequence[str] | None = None) -> list[LocalFile]:
    """The file, or all files of the folder or `only` these, by their paths in the
    dataset.

    A link to a file in the folder counts as a copy of that. InvalidInputError for links
    that lead elsewhere, and for what is no file.
    """
    root = path.absolute()
    base = root if root.is_dir() else root.parent
    inner = os.path.realpath(base)
    places = _places(root) if only is None else [root / name for name in only]
    found = [_local(inner, place, os.path.relpath(place, base)) for place in places]
    if not found:
        raise InvalidInputError.of("PATH", f"{path} has no files", "name another one")
    return sorted(found, key=lambda file: file.path)


def _places(root: Path) -> Iterable[Path]:
    return _walk(root) if root.is_dir() else [root]


def _walk(root: Path) -> Iterator[Path]:
    """All that is below a folder but folders."""
    folders = [root]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as found:
                entries = list(found)
        except OSError as error:
            raise _unreadable(folder, error) from None
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry.path))
            else:
                yield Path(entry.path)


def _local(inner: str, place: Path, path: str) -> LocalFile:
    """The file at `place`, which is `path` in the dataset. `inner`: the folder that
    nothing may lead out of.
    """
    if fault := path_fault(path):
        raise InvalidInputError.of(
            "PATH", f"{quoted(path)} {fault}", "give it another name"
        )
    source = Path(os.path.realpath(place))
    if place.is_symlink() and not source.is_relative_to(inner):
        raise InvalidInputError.of(
            "PATH",
            f"{place} is a link that leads out of the folder",
            "put the file itself there",
        )
    try:
        status = source.stat()
    except OSError as error:
        raise _unreadable(place, error) from None
    if not stat.S_ISREG(status.st_mode):
        is_folder = stat.S_ISDIR(status.st_mode)
        kind = "a link to a folder" if is_folder else "no regular file"
        raise InvalidInputError.of(
            "PATH", f"{place} is {kind}", "a dataset has only files; move it elsewhere"
        )
    executable = bool(status.st_mode & stat.S_IXUSR)
    return LocalFile(path, source, status.st_size, executable)


def _unreadable(path: Path, error: OSError) -> InvalidInputError:
    is_missing = isinstance(error, FileNotFoundError)
    remedy = "check the path" if is_missing else "look at its permissions"
    fault = f"{path} cannot be read: {error.strerror}"
    return InvalidInputError.of("PATH", fault, remedy)
