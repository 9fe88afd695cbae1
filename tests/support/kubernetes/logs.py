"""What containers print, as the kubelet keeps it and gives it out."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime

from tests.support.kubernetes.clock import Clock

_LONGEST = 16 * 1024


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of a log is asked for."""

    follow: bool = False
    timestamps: bool = False
    tail: int | None = None
    since: float | None = None
    limit: int | None = None


class Log:
    """Lines with their times.

    A line is there once it is whole, is long, or nothing more comes.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lines: list[tuple[float, bytes]] = []
        self._rest = b""
        self._closed = False
        self._grown = asyncio.Event()

    def write(self, data: bytes) -> None:
        *whole, self._rest = (self._rest + data).split(b"\n")
        now = self._clock.now()
        self._lines.extend((now, line + b"\n") for line in whole)
        while len(self._rest) >= _LONGEST:
            self._lines.append((now, self._rest[:_LONGEST]))
            self._rest = self._rest[_LONGEST:]
        self._wake()

    def close(self) -> None:
        """Nothing more comes."""
        if self._rest:
            self._lines.append((self._clock.now(), self._rest))
        self._rest = b""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()

    def tail(self, size: int) -> str:
        """The last bytes."""
        return b"".join(line for _, line in self._lines[-80:])[-size:].decode(
            errors="replace"
        )

    async def read(self, wanted: Wanted) -> AsyncIterator[bytes]:
        """What is asked for, and with `follow` what comes."""
        index = self._first(wanted)
        left = wanted.limit
        while True:
            chunk = b"".join(self._shown(line, wanted) for line in self._lines[index:])
            index = len(self._lines)
            if left is not None:
                chunk = chunk[:left]
                left -= len(chunk)
            if chunk:
                yield chunk
            if (
                (self._closed and index == len(self._lines))
                or not wanted.follow
                or left == 0
            ):
                return
            if index == len(self._lines):
                await self._grown.wait()

    def _first(self, wanted: Wanted) -> int:
        first = 0 if wanted.tail is None else max(0, len(self._lines) - wanted.tail)
        if wanted.since is not None:
            while first < len(self._lines) and self._lines[first][0] < wanted.since:
                first += 1
        return first

    def _shown(self, line: tuple[float, bytes], wanted: Wanted) -> bytes:
        at, text = line
        if not wanted.timestamps:
            return text
        stamp = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{stamp}.{int(at % 1 * 1e6):06d}000Z ".encode() + text


def since(seconds: int) -> float:
    """A moment so long ago."""
    return time.time() - seconds
