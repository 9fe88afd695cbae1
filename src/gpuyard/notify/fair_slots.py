"""Deliveries at a time, shared fairly by those whose jobs they tell of: one owner with
a thousand dead addresses delays nobody else.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Hashable
from contextlib import asynccontextmanager

_Turns = deque[asyncio.Future[None]]


class FairSlots:
    """`count` slots, of which one owner has `per_owner` at most. Of the owners who
    wait, the one whose last turn is longest ago gets the next free slot.
    """

    def __init__(self, count: int, per_owner: int) -> None:
        self._free = count
        self._per_owner = per_owner
        self._used: Counter[Hashable] = Counter()
        self._waiting: dict[Hashable, _Turns] = {}
        # Turns are numbered; of each owner who waits or has a slot, its last one.
        self._turn = 0
        self._last_turns: dict[Hashable, int] = {}

    @asynccontextmanager
    async def slot(self, owner: Hashable) -> AsyncGenerator[None]:
        """Wait for a slot, and have it."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        self._last_turns.setdefault(owner, 0)
        self._give()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self._free += 1
                self._used[owner] -= 1
            else:
                turn.cancel()
            self._give()
            self._forget(owner)

    def _give(self) -> None:
        """Give the free slots to those whose turn it is."""
        while self._free:
            able = [one for one in self._waiting if self._used[one] < self._per_owner]
            if not able:
                return
            self._give_to(min(able, key=lambda one: self._last_turns[one]))

    def _give_to(self, owner: Hashable) -> None:
        waiting = self._waiting[owner]
        turn = waiting.popleft()
        if not waiting:
            del self._waiting[owner]
        if turn.cancelled():
            self._forget(owner)
            return
        self._free -= 1
        self._used[owner] += 1
        self._turn += 1
        self._last_turns[owner] = self._turn
        turn.set_result(None)

    def _forget(self, owner: Hashable) -> None:
        """Forget an owner who has nothing any more."""
        if owner not in self._waiting and not self._used[owner]:
            del self._used[owner]
            self._last_turns.pop(owner, None)
