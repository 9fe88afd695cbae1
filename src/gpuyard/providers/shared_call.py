"""One call for many callers: callers that arrive during a call share the next one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class SharedCall(Generic[Answer]):
    """Runs `call` for all callers of this object.

    No caller gets an answer to a call that began before it asked.
    """

    def __init__(self, call: Callable[[], Awaitable[Answer]]) -> None:
        self._call = call
        self._current: asyncio.Task[Answer] | None = None
        self._next: asyncio.Task[Answer] | None = None

    async def __call__(self) -> Answer:
        """The answer of `call`, or the exception it raised."""
        if self._next is None:
            self._next = asyncio.create_task(self._call_after(self._current))
        return await asyncio.shield(self._next)

    async def _call_after(self, previous: asyncio.Task[Answer] | None) -> Answer:
        if previous is not None:
            await asyncio.wait([previous])
        self._current = self._next
        self._next = None
        return await self._call()
