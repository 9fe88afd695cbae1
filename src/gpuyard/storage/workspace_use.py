"""When a workspace was last used, and when it was said that it will go: in a file
beside it, so that all servers which share the folder know it.
"""

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuyard.config.accounts import ENTER
from gpuyard.storage.untrusted import remove_tree, write_whole

# No workspace's own name begins with a dot.
_USE = ".use.json"
_GONE = ".removed"


@dataclass(frozen=True, slots=True)
class Use:
    """Times in UTC seconds; `warned_at` is None until its owner was warned."""

    used_at: float
    warned_at: float | None = None


def use_of(workspace: Path) -> Use | None:
    """What is known of the use of a workspace; None if nothing is."""
    try:
        found: Any = json.loads(_file(workspace).read_text())
        warned_at = found["warned_at"]
        used_at = float(found["used_at"])
        return Use(used_at, None if warned_at is None else float(warned_at))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def note_use(workspace: Path, use: Use) -> None:
    """Note it; OSError."""
    content = {"used_at": use.used_at, "warned_at": use.warned_at}
    make_passage(workspace.parent)
    write_whole(_file(workspace), json.dumps(content).encode())


def make_passage(folder: Path) -> None:
    """Make a folder, and those above it, so that the accounts of jobs can pass."""
    for step in reversed((folder, *folder.parents)):
        if not step.exists():
            step.mkdir(exist_ok=True)
            step.chmod(ENTER)


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
