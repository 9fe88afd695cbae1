"""The bodies of requests: how large each may be, how large all together, and how slowly
they may come.
"""

import asyncio
import re
import time
from collections.abc import Mapping

from starlette.types import Message, Receive, Scope

from gpuyard.config.server import ServerSettings
from gpuyard.domain.datasets import CHUNK_BYTES
from gpuyard.domain.errors import (
    RequestRefusedError,
    ServerBusyError,
    TooLargeError,
    TooSlowError,
)

_MB = 1_000_000
_SMALL_BYTES = _MB
_SLOWEST_BYTES_S = 16_000
# What comes with many jobs, items or pictures; every other route takes small bodies.
_LARGE = re.compile(
    r"POST (/api/v1/(jobs(:(cancel|wait|hold|release))?|arrays|batches"
    r"|packages|estimate(/batch)?|recommendations|datasets/[^/]+/[^/]+/versions)|/v1/.+)"
)
_CHUNK = re.compile(r"PUT /api/v1/datasets/[^/]+/[^/]+/chunks/[^/]+")


class Bodies:
    """The bodies that are being worked on."""

    def __init__(self, settings: ServerSettings) -> None:
        self._large_bytes = int(settings.max_body_mb * _MB)
        self._all_bytes = int(settings.max_bodies_mb * _MB)
        self._slow_s = settings.slow_s
        self._held_bytes = 0

    def of(
        self, scope: Scope, headers: Mapping[bytes, bytes], receive: Receive
    ) -> "Body | None":
        """The body of a request, of which nothing has been read; None when it has none.

        TooLargeError when it says that it is too large.
        """
        length = headers.get(b"content-length", b"0")
        if length == b"0" and b"transfer-encoding" not in headers:
            return None
        limit = self._limit_of(f"{scope['method']} {scope['path'].rstrip('/')}")
        if int(length) > limit:
            raise _too_large(limit)
        return Body(self, receive, limit, self._slow_s)

    def _limit_of(self, route: str) -> int:
        if _CHUNK.fullmatch(route):
            return CHUNK_BYTES
        large = _LARGE.fullmatch(route) is not None
        return self._large_bytes if large else _SMALL_BYTES

    def take(self, size: int) -> None:
        """Hold so many bytes more; ServerBusyError when that is too much."""
        if self._held_bytes + size > self._all_bytes:
            raise ServerBusyError(
                "The server works on too many large requests.",
                "Send it again in a few seconds.",
            )
        self._held_bytes += size

    def give_back(self, size: int) -> None:
        """The bytes are no longer needed."""
        self._held_bytes -= size


class Body:
    """One body, in place of the server's `receive`.

    `fault` is why it was not read to its end; `ended` is true when all of it was.
    """

    def __init__(
        self, bodies: Bodies, receive: Receive, limit: int, slow_s: float
    ) -> None:
        self.fault: RequestRefusedError | None = None
        self.ended = False
        self._bodies = bodies
        self._receive = receive
        self._limit = limit
        self._slow_s = slow_s
        self._size = 0
        self._waited_s = 0.0

    async def __call__(self) -> Message:
        """The next part."""
        if self.fault:
            raise self.fault
        if self.ended:
            return await self._receive()
        try:
            message = await self._next()
            self._count(len(message.get("body", b"")))
        except RequestRefusedError as error:
            self.fault = error
            raise
        self.ended = not message.get("more_body", False)
        return message

    def close(self) -> None:
        """The request is done."""
        self._bodies.give_back(self._size)
        self._size = 0

    async def _next(self) -> Message:
        """The next part, if it comes in time. Only waiting for it counts."""
        allowed_s = self._slow_s + self._size / _SLOWEST_BYTES_S
        began = time.monotonic()
        try:
            async with asyncio.timeout(max(allowed_s - self._waited_s, 0.0)):
                message = await self._receive()
        except TimeoutError:
            raise TooSlowError(
                "The body of the request comes too slowly.",
                f"Send at least {_SLOWEST_BYTES_S // 1000} KB a second.",
            ) from None
        self._waited_s += time.monotonic() - began
        return message

    def _count(self, size: int) -> None:
        if self._size + size > self._limit:
            raise _too_large(self._limit)
        self._bodies.take(size)
        self._size += size


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(
        f"The body is over {limit / _MB:g} MB.",
        "Send fewer jobs at once, and put large data into files.",
    )
