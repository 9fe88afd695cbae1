"""Workspaces: folders that outlive the jobs that use them, one for each project and name."""

from collections.abc import Iterator
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
    looks = [look for file in path.rglob("*") for look in _stat(file)]
    changed_at = max((changed for _, changed in looks), default=None)
    project, name = workspace_names(f"{path.parent.name}/{path.name}")
    return Workspace(project, name, path, len(looks), sum(size for size, _ in looks), changed_at)


def _stat(file: Path) -> Iterator[tuple[int, float]]:
    try:
        if file.is_file():
            look = file.stat()
            yield look.st_size, look.st_mtime
    except OSError:
        return  # a job has just removed it
