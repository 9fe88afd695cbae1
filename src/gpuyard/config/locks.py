"""Lock files: who lives is told by the kernel, which frees a lock with its process, and never by a pid in a file."""

import fcntl
import time
from pathlib import Path
from typing import IO

_TRIES, _PAUSE_S = 20, 0.01


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock file `path`; one that is not there, or may not be read, is not held."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def lock_exclusively(file: IO[str]) -> None:
    """Take the lock of an open file until it is closed; BlockingIOError when another process really holds it.

    `is_locked` has to take a shared lock for a moment in order to look, so one refusal is not believed.
    """
    for _ in range(_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE_S)
        else:
            return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
