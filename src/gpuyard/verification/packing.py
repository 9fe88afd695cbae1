"""Packs the solver into one file, such as a person packs a program with `zipapp`.

Each job gets a file of its own: its name, its size and its folder say nothing of what
it is. Who opens the file can still recognise it.
"""

import io
import secrets
import shutil
import zipfile
from contextlib import suppress
from functools import cache
from pathlib import Path

SOLVER = Path(__file__).parent / "solver"
_SUFFIXES = (".py", ".c")
PROGRAM_NAMES = ("main", "app", "run", "infer", "generate", "evaluate", "serve")
# The package's name in the file, and what runs it.
_PACKAGE = "program"
_START = f"""import sys

from {_PACKAGE}.entry import main

sys.exit(main())
"""
# A file is made longer by as much, at most: what an archive's comment can hold.
_MOST_PADDING = 65535


def pack_solver(programs: Path) -> Path:
    """Write the solver into a new folder of `programs`; returns the file."""
    folder = programs / secrets.token_hex(8)
    folder.mkdir(parents=True)
    file = folder / f"{secrets.choice(PROGRAM_NAMES)}.pyz"
    file.write_bytes(_archive())
    with zipfile.ZipFile(file, "a") as archive:
        archive.comment = secrets.token_bytes(secrets.randbelow(_MOST_PADDING))
    return file


def remove_program(file: Path) -> None:
    """Remove what `pack_solver` wrote."""
    shutil.rmtree(file.parent, ignore_errors=True)


def remove_old_programs(programs: Path, before: float) -> None:
    """Remove what processes that were killed have left behind.

    `before`: only what was written before (UTC seconds).
    """
    if not programs.exists():
        return
    for folder in programs.iterdir():
        with suppress(OSError):  # another process was faster
            if folder.stat().st_mtime < before:
                shutil.rmtree(folder, ignore_errors=True)


@cache
def _archive() -> bytes:
    """The solver's files as a zip archive that Python can run."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__main__.py", _START)
        for path in sorted(SOLVER.rglob("*")):
            if path.suffix in _SUFFIXES:
                archive.write(path, f"{_PACKAGE}/{path.relative_to(SOLVER)}")
    return content.getvalue()
