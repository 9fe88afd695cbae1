"""A folder with the code that a job was submitted with, for a job whose working folder
has changed since.

The files of the code are there as they were. Whatever else the working folder holds, a
link leads to: so data is found, and output folders that exist get the output.
"""

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from gpuyard.storage.archive import beside
from gpuyard.storage.code_folders import folder_of, note_changes
from gpuyard.storage.code_snapshots import CodeReader
from gpuyard.storage.code_store import CodeStore, CodeTree
from gpuyard.storage.contents import stores_of_node

_NEVER_LINKED = "__pycache__"


class CodeFolders:
    """Makes the folders; `store` has the code."""

    def __init__(self, store: CodeStore) -> None:
        self._store = store
        self._reader = CodeReader(store)

    def files_needed(self, digest: str, live: Path | None) -> list[str]:
        """The contents that `prepare` needs for the folder `live`; without that, those
        of all files. CodeMissingError.
        """
        tree = self._store.get(digest)
        if live and not (live.is_dir() and self._reader.changes(tree, live)):
            return []
        return [entry.sha256 for entry in tree.entries if entry.sha256]

    def prepare(self, digest: str, live: Path, private: Path) -> Path:
        """Where an attempt with the code `digest` works: in its folder `live`, or, if
        the code there has changed, in a new one. CodeMissingError, OSError.
        """
        target = folder_of(private)
        if target.is_dir():
            return target  # an earlier agent made it
        tree = self._store.get(digest)
        changed = self._reader.changes(tree, live)
        if not changed or not live.is_dir():
            return live
        with beside(target) as fresh:
            _Builder(self._store, tree, live, fresh).build()
            note_changes(private, changed)
            fresh.rename(target)
        return target


@lru_cache(maxsize=4)
def code_folders(home: Path) -> CodeFolders:
    """Those of the agent of a home; it remembers which files it has read."""
    return CodeFolders(CodeStore(stores_of_node(home)))


class _Builder:
    """Fills the folder `fresh` with `tree` and with links to what else is in `live`."""

    def __init__(
        self, store: CodeStore, tree: CodeTree, live: Path, fresh: Path
    ) -> None:
        self._store = store
        self._live = live
        self._fresh = fresh
        self._code = {entry.path: entry for entry in tree.entries}
        self._folders = {parent for path in self._code for parent in _parents(path)}

    def build(self) -> None:
        for folder in sorted(self._folders):
            (self._fresh / folder).mkdir(parents=True, exist_ok=True)
            self._link_others(folder)
        for path, entry in self._code.items():
            place = self._fresh / path
            if entry.link:
                place.symlink_to(entry.link)
                continue
            mode = 0o777 if entry.executable else 0o666
            file = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(file, "wb") as opened:
                opened.write(self._store.file(entry.sha256))

    def _link_others(self, folder: str) -> None:
        """Link to what the working folder has in `folder` that is no code."""
        try:
            names = os.listdir(self._live / folder)  # noqa: PTH208
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in names:
            path = f"{folder}/{name}".removeprefix("/")
            is_code = path in self._code or path in self._folders
            if not is_code and name != _NEVER_LINKED:
                (self._fresh / path).symlink_to(self._live / path)


def _parents(path: str) -> Sequence[str]:
    """The folders on the way to a path; the topmost is empty."""
    steps = path.split("/")[:-1]
    return ["/".join(steps[:depth]) for depth in range(len(steps) + 1)]
