"""Threads for reports: one of a million attempts takes seconds, and all other work of
the server shares asyncio's own threads.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

AT_ONCE = 2
_threads = ThreadPoolExecutor(AT_ONCE, "reports")
_Result = TypeVar("_Result")


async def in_report_thread(work: Callable[..., _Result], *words: Any) -> _Result:
    """Call it in a thread for reports; it waits while all of them are busy."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_threads, work, *words)
