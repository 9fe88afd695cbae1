"""Lock files. A held lock shows that a process lives, because the kernel releases it
with the process; a pid in a file does not.
"""

import fcntl
import os
import time
from pathlib import Path
from typing import IO

_TRIES = 20
_PAUSE_S = 0.01


def is_locked(path: Path) -> bool:
    """True when a process holds the lock file `path`. A file that does not exist or
    cannot be read is not locked.
    """
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def open_lock(path: Path) -> IO[str]:
    """Open a lock file, which nobody else may open: whoever may read a file can lock
    it.
    """
    descriptor = os.open(
        path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
    )
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "a+")


def lock_exclusively(file: IO[str]) -> None:
    """Lock an open file until it is closed; BlockingIOError when another process holds
    the lock.

    `is_locked` takes a shared lock for a moment, so a single refusal does not count.
    """
    for _ in range(_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE_S)
        else:
            return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
