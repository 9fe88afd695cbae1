"""How many files a process may have open: many for a server, and for the programs that
it starts as many as before.
"""

import resource
from contextlib import suppress

# Beyond any number of connections that one process can serve.
_MOST = 65_536
_first_soft: int | None = None


def allow_many_files() -> None:
    """Raise the limit of this process as far as the system lets us.

    A program that uses select() breaks with many open files, so whatever this process
    starts gets the former limit (`restore_files`).
    """
    global _first_soft
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        _first_soft = soft
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def restore_files(pid: int = 0) -> None:
    """Give a process (0: this one) the limit that this process had at first."""
    if _first_soft is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (_first_soft, hard))
