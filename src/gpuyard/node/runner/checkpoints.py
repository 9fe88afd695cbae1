"""Keeps the checkpoints that a program writes."""

import glob
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from .files import made, remove, state_of, write

_SCAN_S = 1.0
_FOLDER_QUIET_S = 2.0
_KEPT = 3
_STEP = re.compile(r"(?i)(?:step|iter|ckpt|checkpoint|epoch)[-_=]?(\d{1,15})(?!\d)")
_UNFINISHED = (".tmp", ".partial", ".incomplete")


class CheckpointCopies:
    """Copies complete checkpoints, so that the program cannot change them any more."""

    def __init__(self, order: Dict[str, Any], folder: Path) -> None:
        pattern: Optional[str] = order["checkpoint"].get("path")
        self._pattern = pattern if pattern and _stays_inside(pattern) else None
        self._base = Path(order.get("workdir") or str(folder / "work"))
        self._folder = folder
        self._last: Dict[str, Tuple[float, int]] = {}
        self._taken = self._looks()
        self._kept: List[Dict[str, Any]] = []
        self._number = 0
        self._scan_at = 0.0

    def scan(self, last: bool = False) -> None:
        """Copy what looked the same twice; `last`: the program ended by itself."""
        if not self._pattern or (time.monotonic() < self._scan_at and not last):
            return
        self._scan_at = time.monotonic() + _SCAN_S
        looks = self._looks()
        for name in sorted(looks, key=lambda name: (looks[name][0], name)):
            is_folder = (self._base / name).is_dir()
            quiet = not is_folder or time.time() - looks[name][0] >= _FOLDER_QUIET_S
            settled = last or (quiet and self._last.get(name) == looks[name])
            if settled and self._taken.get(name) != looks[name]:
                self._take(name, looks[name])
        self._last = looks

    def _looks(self) -> Dict[str, Tuple[float, int]]:
        found: Dict[str, Tuple[float, int]] = {}
        if not self._pattern:
            return found
        for path in glob.glob(str(self._base / self._pattern), recursive=True):
            name = os.path.relpath(path, str(self._base))
            look = state_of(Path(path))
            is_complete = look and look[1] and not path.endswith(_UNFINISHED)
            if look and is_complete and not self._is_linked(name):
                found[name] = look
        return found

    def _is_linked(self, name: str) -> bool:
        """True when it is or lies below a link, but for folders that the pattern names:
        what is found twice is one checkpoint.
        """
        steps = Path(name).parts
        named = Path(self._pattern or "").parts[:-1]
        place = self._base
        for index, step in enumerate(steps):
            place /= step
            is_named = steps[: index + 1] == named[: index + 1]
            if place.is_symlink() and not is_named:
                return True
        return False

    def _take(self, name: str, look: Tuple[float, int]) -> None:
        source = self._base / name
        copy = made(self._folder / "checkpoints") / f"{self._number:06d}-{source.name}"
        remove(copy)
        try:
            if source.is_dir():
                shutil.copytree(str(source), str(copy), symlinks=True)
                _shorten_links(copy, source)
            else:
                shutil.copy2(str(source), str(copy))
            whole = state_of(source) == look
        except (OSError, shutil.Error):
            whole = False  # rotated away, or the disk is full: the next scan retries
        if not whole:
            remove(copy)
            return
        self._number += 1
        self._taken[name] = look
        steps = _STEP.findall(source.name)
        checkpoint = {
            "path": name,
            "step": int(steps[-1]) if steps else None,
            "at": time.time(),
            "file": copy.name,
            "directory": source.is_dir(),
            "size": look[1],
        }
        self._kept.append(checkpoint)
        for old in self._kept[:-_KEPT]:
            remove(self._folder / "checkpoints" / old["file"])
        self._kept = self._kept[-_KEPT:]
        write(self._folder / "checkpoints.json", self._kept)


def _stays_inside(pattern: str) -> bool:
    path = Path(pattern)
    return not path.is_absolute() and ".." not in path.parts


def _shorten_links(copy: Path, source: Path) -> None:
    """Let links that lead into `source` by their whole path lead into its copy."""
    for top, folders, names in os.walk(str(copy)):
        for name in folders + names:
            link = os.path.join(top, name)
            target = os.readlink(link) if os.path.islink(link) else ""
            if target.startswith(str(source) + os.sep):
                inner = str(copy / os.path.relpath(target, str(source)))
                os.unlink(link)
                os.symlink(os.path.relpath(inner, top), link)
