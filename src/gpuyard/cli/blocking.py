"""Calls that may block for ever, such as reads from a terminal, beside an event loop.

Each has a thread of its own that does not keep the command from leaving.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def beside(work: Callable[[], T]) -> T:
    """What `work` returns or raises."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def set_result(result: T) -> None:
        if not answer.done():
            answer.set_result(result)

    def set_exception(error: BaseException) -> None:
        if not answer.done():
            answer.set_exception(error)

    def run() -> None:
        with suppress(RuntimeError):  # the loop has ended
            try:
                result = work()
            except Exception as error:  # noqa: BLE001  (raised where it is awaited)
                loop.call_soon_threadsafe(set_exception, error)
            else:
                loop.call_soon_threadsafe(set_result, result)

    threading.Thread(target=run, daemon=True).start()
    return await answer
