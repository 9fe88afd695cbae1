"""Answers that are kept for a while."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar, cast

from gpuyard.domain.errors import ProviderError

Answer = TypeVar("Answer")
# After an error, what is not needed is asked for again after this time.
_AGAIN_S = 300.0


class Kept(Generic[Answer]):
    """An answer that `read` gives, and that is read again when it is old. All callers
    wait for one reading.

    If a reading fails, the last answer stays, or `otherwise` before the first one. With
    neither, the error of `read` is raised.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[Answer]],
        max_age_s: float,
        otherwise: Answer | None = None,
    ) -> None:
        self._read = read
        self._max_age_s = max_age_s
        self._answer = otherwise
        self._due_at = float("-inf")
        self._reading = asyncio.Lock()

    async def __call__(self) -> Answer:
        async with self._reading:
            if time.monotonic() >= self._due_at:
                await self._read_again()
        return cast("Answer", self._answer)

    async def _read_again(self) -> None:
        try:
            self._answer = await self._read()
            self._due_at = time.monotonic() + self._max_age_s
        except ProviderError:
            if self._answer is None:
                raise
            self._due_at = time.monotonic() + _AGAIN_S
