"""Returns freed memory to the kernel and to other threads: the allocator keeps what
Python has freed, and after a large request that is half its size.
"""

import asyncio
import ctypes
import gc
from contextlib import suppress

MANY_JOBS = 10_000
"""After this many jobs at once, a trim is worth its milliseconds."""
# Of malloc.h.
_ARENA_MAX = -8
# By then, nothing refers to the objects of a request any more.
_AFTER_S = 0.1


def share_free_memory() -> None:
    """Let all threads take memory from one place, so that what one has freed serves
    the others; call it before there are threads. Does nothing where the C library is
    not glibc.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


def trim_memory() -> None:
    """Return free memory to the kernel; does nothing where the C library is not glibc
    and lacks the call.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def trim_memory_soon() -> None:
    """Trim in a thread, after the caller has dropped its objects; needs a running loop.

    The objects that are left live long, so they are also taken out of garbage
    collection: to look at them again would take a tenth of a second.
    """
    loop = asyncio.get_running_loop()

    def freeze_and_trim() -> None:
        gc.freeze()
        loop.run_in_executor(None, trim_memory)

    loop.call_later(_AFTER_S, freeze_and_trim)
