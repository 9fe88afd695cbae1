"""Giving memory back: what Python has let go of stays with the allocator, and a large request leaves half its size."""

import asyncio
import ctypes
import gc
from contextlib import suppress

MANY = 10_000
"""After so many jobs at once it is worth some milliseconds."""
# By then nothing of a request is held any more.
_AFTER_S = 0.1


def trim_memory() -> None:
    """Return what is free to the system; nothing happens where the C library has no such call (it is glibc's)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def settle_memory_soon() -> None:
    """The same in a thread, when the one who asks has let go of what it holds; needs a running loop.

    What is left lives long: the collector need not look at it again, which would take a tenth of a second.
    """
    loop = asyncio.get_running_loop()

    def settle() -> None:
        gc.freeze()
        loop.run_in_executor(None, trim_memory)

    loop.call_later(_AFTER_S, settle)
