"""Calls functions after a delay that is the same for all of them.

The event loop has one timer for all: most jobs are over before their call is due, and a
timer for each would cost as much as a system call.
"""

import asyncio
from collections import deque
from collections.abc import Callable


class DelayedCall:
    """A call that is due at a time of the event loop's clock."""

    __slots__ = ("due", "function")

    def __init__(self, due: float, function: Callable[[], None]) -> None:
        self.due = due
        self.function: Callable[[], None] | None = function

    def cancel(self) -> None:
        """Do not call it."""
        self.function = None


class FixedDelay:
    """The calls that wait; each is made `delay_s` seconds after it was asked for."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._waiting: deque[DelayedCall] = deque()
        self._is_set = False

    def call(self, function: Callable[[], None]) -> DelayedCall:
        """Call a function after the delay."""
        loop = asyncio.get_running_loop()
        call = DelayedCall(loop.time() + self._delay_s, function)
        self._waiting.append(call)
        if not self._is_set:
            self._is_set = True
            loop.call_at(call.due, self._make_due_calls)
        return call

    def _make_due_calls(self) -> None:
        loop = asyncio.get_running_loop()
        waiting = self._waiting
        self._is_set = False
        # What is cancelled goes first, so that an idle loop is not woken for it.
        while waiting and (
            waiting[0].function is None or waiting[0].due <= loop.time()
        ):
            function = waiting.popleft().function
            if function:
                loop.call_soon(function)
        if waiting:
            self._is_set = True
            loop.call_at(waiting[0].due, self._make_due_calls)
