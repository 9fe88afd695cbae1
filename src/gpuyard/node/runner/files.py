"""Files and folders of an attempt."""

import json
import os
import shutil
from pathlib import Path
from typing import Any, Optional, Tuple


def state_of(path: Path) -> Optional[Tuple[float, int]]:
    """When it changed last (UTC seconds), and its size in bytes; None: it is gone.
    Links in a folder do not count.
    """
    try:
        inside = [path]
        if path.is_dir():
            walked = os.walk(str(path))
            inside = [Path(top) / name for top, _, names in walked for name in names]
        files = [file for file in inside if file.is_file() and not file.is_symlink()]
        status = [file.stat() for file in files]
    except OSError:
        return None
    newest = max([item.st_mtime for item in status] or [0.0])
    return newest, sum(item.st_size for item in status)


def write(path: Path, value: Any) -> None:
    """Write a JSON file; it appears whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(str(path), ignore_errors=True)
    elif path.exists():
        path.unlink()
