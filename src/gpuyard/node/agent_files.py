"""The agent's own files in its home: its lock, the node's id, and the time of the last
contact with a server.
"""

import fcntl
import os
import time
from pathlib import Path
from typing import IO

from gpuyard.config.locks import open_lock
from gpuyard.domain.ids import new_id


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
