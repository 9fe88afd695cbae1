"""Time and waiting, which tests put their own in place of."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Clock:
    """The machine's clock."""

    def now(self) -> float:
        """UTC seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds from some moment on, for durations."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


async def within(clock: Clock, limit_s: float, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives; TimeoutError when that takes longer than `limit_s`, after which it is cancelled."""
    task, timer = asyncio.ensure_future(work), asyncio.ensure_future(clock.sleep(limit_s))
    try:
        await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise TimeoutError(f"took longer than {limit_s:g} s")
    finally:
        await cancelled(task, timer)


async def cancelled(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel tasks and wait until they are over, whatever they end with."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
