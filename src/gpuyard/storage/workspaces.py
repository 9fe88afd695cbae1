"""Workspaces: folders that outlive the jobs that use them. Each belongs to a project
and has a name.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpuyard.domain.workspaces import workspace_names


@dataclass(frozen=True, slots=True)
class Workspace:
    """A workspace and its content: `size` in bytes, `changed_at` in UTC seconds, None
    while it is empty.
    """

    project: str
    name: str
    path: Path
    files: int
    size: int
    changed_at: float | None


class RemoteWorkspaces(Protocol):
    """Where workspaces are besides this host. Failures are OSErrors; all methods
    block.
    """

    def listing(self) -> list[Workspace]:
        """All that are there, by project and name."""
        ...

    def pull(self, key: str) -> None:
        """Bring what is new there here."""
        ...

    def push(self, key: str) -> None:
        """Send what is new here there."""
        ...

    def remove(self, key: str) -> None:
        """Remove it there."""
        ...


def listing(root: Path) -> list[Workspace]:
    """All workspaces below `root`, by project and name; blocks on the disk."""
    return [_look(path) for project in _folders(root) for path in _folders(project)]


def _folders(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    # One that begins with a dot is being removed.
    return sorted(
        path
        for path in root.iterdir()
        if path.is_dir()
        and not path.is_symlink()  # a job may put a link in its place
        and not path.name.startswith(".")
    )


def _look(path: Path) -> Workspace:
    files = [status for _, status in files_of(path)]
    changed_at = max((status.st_mtime for status in files), default=None)
    size = sum(status.st_size for status in files)
    project, name = workspace_names(f"{path.parent.name}/{path.name}")
    return Workspace(project, name, path, len(files), size, changed_at)


def files_of(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The paths of all files relative to the folder, with their status; files that
    vanish meanwhile are skipped. A link in place of the folder has none.

    Blocks on the disk.
    """
    if folder.is_symlink():
        return
    # No recursion: a job may nest folders as deep as it likes.
    folders = [os.fspath(folder)]
    while folders:
        for entry in _entries(folders.pop()):
            if not entry.is_dir():
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    yield os.path.relpath(entry.path, folder), status
            elif not entry.is_symlink():
                folders.append(entry.path)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []
