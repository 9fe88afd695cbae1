"""Tells which files with logged scalars are an attempt's, by its processes."""

from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePath

from gpuyard.insight.event_files import EVENT_FILE
from gpuyard.insight.scalar_files import ScalarReader
from gpuyard.node.checkpoints import inode_of, open_for_writing
from gpuyard.storage.untrusted import open_beneath


def scalar_reader(
    folder: Path,
    began_at: float,
    pids: Callable[[], Collection[int]],
    *,
    owner: int | None = None,
) -> ScalarReader:
    """Reads what an attempt logs below `folder`, since `began_at` (UTC seconds). `pids`
    are its processes now. `owner`: as for `CheckpointWatcher`.
    """
    files = _WrittenFiles(folder, pids)
    return ScalarReader(folder, began_at, files.own, partial(open_beneath, owner=owner))


class _WrittenFiles:
    """The files that some processes write, now or, by their names, before."""

    def __init__(self, folder: Path, pids: Callable[[], Collection[int]]) -> None:
        self._folder = folder
        self._pids = pids
        self._seen: set[int] = set()

    def own(self, names: Collection[str]) -> Collection[str]:
        """Those of `names` that are theirs."""
        self._seen.update(self._pids())
        unnamed = [name for name in names if _pid_in(name) is None]
        written = open_for_writing(self._seen if unnamed else ())
        own: list[str] = []
        for name in names:
            pid = _pid_in(name)
            if pid is not None:
                if pid in self._seen:
                    own.append(name)
                continue
            with suppress(OSError):
                if inode_of((self._folder / name).lstat()) in written:
                    own.append(name)
        return own


def _pid_in(name: str) -> int | None:
    match = EVENT_FILE.match(PurePath(name).name)
    return int(match["pid"]) if match and match["pid"] else None
