"""Time: a clock that tests can replace, and a time of day that never jumps."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class SystemClock:
    """The machine's clock. Tests use their own subclass."""

    def now(self) -> float:
        """The time of day in UTC seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment, to measure durations."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait for this many seconds."""
        await asyncio.sleep(seconds)


async def within(clock: SystemClock, limit_s: float, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, or cancel it after `limit_s`: TimeoutError."""
    task = asyncio.ensure_future(work)
    timer = asyncio.ensure_future(clock.sleep(limit_s))
    try:
        await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise TimeoutError(f"took longer than {limit_s:g} s")
    finally:
        await cancelled(task, timer)


async def cancelled(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel tasks and wait until all have ended, whatever they raise."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


_BEGAN = time.time() - time.monotonic()


def steady_now() -> float:
    """The time of day (UTC seconds), measured from the start of this process.

    Setting the machine's clock does not change it, so differences are true durations.
    """
    return steady_time(time.monotonic())


def steady_time(monotonic: float) -> float:
    """A reading of the monotonic clock as such a time of day (UTC seconds)."""
    return _BEGAN + monotonic
