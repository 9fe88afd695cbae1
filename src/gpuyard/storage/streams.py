"""Streams of bytes: hashed and counted as they pass, or an iterator read like a
file.
"""

import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Blob:
    """A stored blob: its SHA-256 in hex and its size in bytes."""

    sha256: str
    size: int


class HashedFile(io.RawIOBase):
    """A file that is read from its start or written to its end, and hashes and counts
    the bytes.
    """

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file
        self._digest = hashlib.sha256()
        self._size = 0

    @property
    def blob(self) -> Blob:
        """Hash and size of the bytes so far."""
        return Blob(self._digest.hexdigest(), self._size)

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(size)
        self._count(data)
        return data

    def write(self, data: "ReadableBuffer", /) -> int:
        self._count(data)
        return self._file.write(data)

    def drain(self) -> None:
        """Read what is left."""
        while self.read(CHUNK):
            pass

    def _count(self, data: "ReadableBuffer") -> None:
        self._digest.update(data)
        self._size += memoryview(data).nbytes


class FirstBytes(io.RawIOBase):
    """The first `size` bytes of a file, which another program may make longer while it
    is read.
    """

    def __init__(self, file: IO[bytes], size: int) -> None:
        super().__init__()
        self._file = file
        self._left = size
        self.name = file.name

    def read(self, size: int = -1, /) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        data = self._file.read(wanted)
        self._left -= len(data)
        return data


def as_file(parts: Iterator[bytes]) -> io.BufferedReader:
    """The parts, one after the other, as a file to read.

    Errors of the iterator are raised by the reading.
    """
    return io.BufferedReader(_Parts(parts), CHUNK)


class _Parts(io.RawIOBase):
    def __init__(self, parts: Iterator[bytes]) -> None:
        super().__init__()
        self._parts = parts
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        while not self._rest:
            part = next(self._parts, None)
            if part is None:
                return 0
            self._rest = memoryview(part)
        room = memoryview(buffer).cast("B")
        count = min(len(room), len(self._rest))
        room[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
