"""Fills a folder with the code of a tree, and with links to what else the working
folder holds: so data is found, and output folders that exist get the output.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from gpuyard.storage.code_tree import CodeTree

_NEVER_LINKED = "__pycache__"


class CodeBuilder:
    """Fills the folder `fresh`, which is empty or does not exist. `live` is the working
    folder; `content` gives that of a file by its hash.
    """

    def __init__(
        self, tree: CodeTree, content: Callable[[str], bytes], live: Path, fresh: Path
    ) -> None:
        self._content = content
        self._live = live
        self._fresh = fresh
        self._code = {entry.path: entry for entry in tree.entries}
        self._folders = {parent for path in self._code for parent in _parents(path)}

    def build(self) -> None:
        """Fill it; OSError."""
        # A folder without code is one, too.
        self._fresh.mkdir(parents=True, exist_ok=True)
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
                opened.write(self._content(entry.sha256))

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
