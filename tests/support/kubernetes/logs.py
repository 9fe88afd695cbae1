"""What containers print, as the kubelet keeps it and gives it out."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from tests.support.kubernetes.clock import Clock

_LONGEST = 16 * 1024
# Container runtimes write the times of their node's zone.
_ZONE = timezone(timedelta(hours=8))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of a log is asked for."""

    follow: bool = False
    timestamps: bool = False
    tail: int | None = None
    since: float | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class _Piece:
    """A line, or a part of a long one; `at` is in nanoseconds, UTC."""

    at: int
    text: bytes
    begins: bool = True


class Log:
    """Lines with their times.

    A line is there once it is whole, is long, or nothing more comes.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lines: list[_Piece] = []
        self._rotated = 0
        self._in_line = False
        self._rest = b""
        self._closed = False
        self._grown = asyncio.Event()
        # What the kubelet says instead of the log, and instead of waiting for more.
        self.removed = ""
        self.not_watched = ""

    def write(self, data: bytes) -> None:
        *whole, self._rest = (self._rest + data).split(b"\n")
        for line in whole:
            self._add(line + b"\n")
        while len(self._rest) >= _LONGEST:
            self._add(self._rest[:_LONGEST])
            self._rest = self._rest[_LONGEST:]
        self._wake()

    def _add(self, text: bytes) -> None:
        # No two have the same time.
        last = self._lines[-1].at if self._lines else 0
        at = max(int(self._clock.now() * 1e9), last + 1)
        self._lines.append(_Piece(at, text, begins=not self._in_line))
        self._in_line = not text.endswith(b"\n")

    def rotate(self) -> None:
        """Drop what was printed so far: who reads it already still gets it."""
        self._rotated += len(self._lines)
        self._lines.clear()

    def close(self) -> None:
        """Nothing more comes."""
        if self._rest:
            self._add(self._rest)
        self._rest = b""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()

    def tail(self, size: int) -> str:
        """The last bytes."""
        pieces = self._lines[-80:]
        return b"".join(each.text for each in pieces)[-size:].decode(errors="replace")

    async def read(self, wanted: Wanted) -> AsyncIterator[bytes]:
        """What is asked for, and with `follow` what comes."""
        if self.removed:
            yield self.removed.encode()
            return
        tail = 0 if wanted.tail is None else max(0, len(self._lines) - wanted.tail)
        index = self._rotated + self._first(wanted, tail)
        # Where the kubelet begins to read, it takes a part of a line for a line.
        begins = index == self._rotated + tail
        left = wanted.limit
        while True:
            new = self._lines[max(index - self._rotated, 0) :]
            parts: list[bytes] = []
            for piece in new:
                parts.append(self._shown(piece, wanted, begins=begins or piece.begins))
                begins = False
            chunk = b"".join(parts)
            index = self._rotated + len(self._lines)
            if left is not None:
                chunk = chunk[:left]
                left -= len(chunk)
            if chunk:
                yield chunk
            is_all = index == self._rotated + len(self._lines)
            if (self._closed and is_all) or not wanted.follow or left == 0:
                return
            if is_all and self.not_watched:
                yield self.not_watched.encode()
                return
            if is_all:
                await self._grown.wait()

    def _first(self, wanted: Wanted, first: int) -> int:
        """The first line of those from `first` on that is not too old."""
        if wanted.since is not None:
            # The time in a request has whole seconds.
            begin = int(wanted.since) * 1_000_000_000
            while first < len(self._lines) and self._lines[first].at < begin:
                first += 1
        return first

    def _shown(self, piece: _Piece, wanted: Wanted, *, begins: bool) -> bytes:
        if not wanted.timestamps or not begins:
            return piece.text
        at = datetime.fromtimestamp(piece.at // 1_000_000_000, _ZONE)
        stamp = at.strftime("%Y-%m-%dT%H:%M:%S")
        fraction = piece.at % 1_000_000_000
        return f"{stamp}.{fraction:09d}+08:00 ".encode() + piece.text


def since(seconds: int) -> float:
    """A moment so long ago."""
    return time.time() - seconds
