"""Asking once for many: those who ask while a question is under way share the next one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Together(Generic[Answer]):
    """Calls `ask` for all who call this. Nobody is given an answer to a question asked before theirs."""

    def __init__(self, ask: Callable[[], Awaitable[Answer]]) -> None:
        self._ask = ask
        self._now: asyncio.Task[Answer] | None = None
        self._next: asyncio.Task[Answer] | None = None

    async def __call__(self) -> Answer:
        """The answer, or what `ask` raised."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._now))
        return await asyncio.shield(self._next)

    async def _after(self, before: asyncio.Task[Answer] | None) -> Answer:
        if before is not None:
            await asyncio.wait([before])
        self._now, self._next = self._next, None
        return await self._ask()
