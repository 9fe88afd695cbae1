"""The agent's own files in its home: its lock, the node's id, the time of the last
contact with a server, and why a server does not serve it.
"""

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

import structlog

from gpuyard.config.locks import open_lock
from gpuyard.domain.ids import new_id

log = structlog.get_logger(__name__)


def lock_agent(path: Path) -> IO[str]:
    """Wait until no other agent of this home runs: two must never run the same
    attempts.
    """
    file = open_lock(path)
    fcntl.flock(file, fcntl.LOCK_EX)
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def node_id(path: Path) -> str:
    """This node's id; made at the first call."""
    if not path.exists():
        draft = path.with_suffix(".new")
        draft.write_text(new_id("node"))
        draft.rename(path)
    return path.read_text().strip()


def last_contact(path: Path) -> float:
    """When an agent of this node last had a link, in seconds of the monotonic clock;
    now, if that is not known.
    """
    now = time.monotonic()
    try:
        return min(float(path.read_text()), now)
    except (FileNotFoundError, ValueError):
        return now


class RefusalNote:
    """Why the server does not serve this agent, in a file for who asks; without the
    file it does, or was not reached.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._noted = ""

    def note(self, reason: str) -> None:
        """The server has refused this agent."""
        if reason != self._noted:
            log.error("the server refuses this agent", why=reason)
            with suppress(OSError):
                self._path.write_text(reason)
        self._noted = reason

    def forget(self) -> None:
        """The server serves this agent."""
        self._noted = ""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
