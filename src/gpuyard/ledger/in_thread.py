"""Work on a connection in a thread."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

Result = TypeVar("Result")


async def finish_in_thread(
    executor: Executor, work: Callable[..., Result], *arguments: Any
) -> Result:
    """Run `work` in a thread of `executor`; a cancelled caller still waits until it has
    ended.

    Otherwise a connection might be closed while the thread uses it.
    """
    loop = asyncio.get_running_loop()
    running = loop.run_in_executor(executor, work, *arguments)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.gather(running, return_exceptions=True)
        raise
