"""Workspaces: folders that outlive the jobs that use them, one for each project and name."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpuyard.domain.workspaces import workspace_names


@dataclass(frozen=True, slots=True)
class Workspace:
    """One of them, and what it holds: `size` in bytes, `changed_at` in UTC seconds, None while it is empty."""

    project: str
    name: str
    path: Path
    files: int
    size: int
    changed_at: float | None


def listing(root: Path) -> list[Workspace]:
    """All that lie below `root`, by project and name; it blocks on the disk."""
    return [_look(path) for project in _folders(root) for path in _folders(project)]


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []


def _look(path: Path) -> Workspace:
    looks = [look for _, look in files_of(path)]
    changed_at = max((look.st_mtime for look in looks), default=None)
    project, name = workspace_names(f"{path.parent.name}/{path.name}")
    return Workspace(project, name, path, len(looks), sum(look.st_size for look in looks), changed_at)


def files_of(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Its files, by their path in it; what goes meanwhile is passed over. It blocks on the disk."""
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)  # noqa: PTH118  (Path takes twice the time, of a million files)
            with suppress(OSError):
                yield os.path.relpath(path, folder), os.lstat(path)
