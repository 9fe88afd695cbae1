"""When a workspace was last used, and when it was said that it will go: in a file
beside it, so that all servers which share the folder know it.
"""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpuyard.storage.untrusted import remove_tree, write_whole

# No workspace's own name begins with a dot.
_USE = ".use.json"
_GONE = ".removed"


@dataclass(frozen=True, slots=True)
class Use:
    """Times in UTC seconds; `warned_at` is None until its owner was warned. `by_job`:
    a job has used it, so it is a workspace, and not a folder that somebody has put
    there.
    """

    used_at: float
    warned_at: float | None = None
    by_job: bool = False


def use_of(workspace: Path) -> Use | None:
    """What is known of the use of a workspace; None if nothing is."""
    try:
        found: Any = json.loads(_file(workspace).read_text())
        warned_at = found["warned_at"]
        used_at = float(found["used_at"])
        warned_at = None if warned_at is None else float(warned_at)
        return Use(used_at, warned_at, bool(found.get("by_job")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def note_use(workspace: Path, use: Use) -> bool:
    """Note it, unless its project has no workspace yet: who starts its first job makes
    that folder, so that the account of the job may pass through it. Returns whether it
    is noted; OSError.
    """
    if not workspace.parent.is_dir():
        return False
    write_whole(_file(workspace), json.dumps(asdict(use)).encode())
    return True


def set_aside(workspace: Path) -> Path:
    """Take a workspace away at once: whoever needs it from now on gets an empty one.
    Returns where its content is; OSError.
    """
    gone = workspace.with_name(f".{workspace.name}{_GONE}")
    remove_tree(gone)  # of a server that was killed as it removed one
    workspace.rename(gone)
    _file(workspace).unlink(missing_ok=True)
    return gone


def remove_set_aside(root: Path) -> None:
    """Remove the content of workspaces that were set aside. Blocks on the disk."""
    for gone in root.glob(f"*/.*{_GONE}"):
        remove_tree(gone)
        with suppress(OSError):
            os.rmdir(gone)  # noqa: PTH106  (it may be there still)


def _file(workspace: Path) -> Path:
    return workspace.with_name(f".{workspace.name}{_USE}")
