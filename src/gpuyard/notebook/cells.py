"""Cells as scripts: cells that are not valid Python are refused, the rest is written to
a file.
"""

import ast
import hashlib
from pathlib import Path

from gpuyard.domain.errors import InvalidInputError

FOLDER = ".gpuyard-cells"
"""Where the scripts are, in the folder of the notebook."""
# What only IPython understands: its own commands, those of the shell, and its help.
_IPYTHON = ("!", "%", "?")


def check(cell: str) -> None:
    """InvalidInputError if a cell cannot run as a script, naming the line."""
    if not cell.strip():
        raise InvalidInputError.of("cell", "is empty", "write what the job runs")
    try:
        ast.parse(cell)
    except SyntaxError as error:
        raise _refusal(cell, error) from None


def write(cell: str, folder: Path) -> Path:
    """The script of a cell, relative to `folder`; equal cells have one script."""
    digest = hashlib.sha256(cell.encode()).hexdigest()[:12]
    script = Path(FOLDER, f"cell-{digest}.py")
    path = folder / script
    path.parent.mkdir(exist_ok=True)
    path.write_text(cell, encoding="utf-8")
    return script


def _refusal(cell: str, error: SyntaxError) -> InvalidInputError:
    number = error.lineno or 1
    lines = cell.splitlines()
    line = lines[min(number, len(lines)) - 1].strip()
    if line.startswith(_IPYTHON):
        fault = f"is a command of IPython: {line}"
        remedy = "put it in a cell of its own, because the job runs plain Python"
        return InvalidInputError.of(f"line {number}", fault, remedy)
    fault = f"is not valid Python: {error.msg}: {line}"
    return InvalidInputError.of(f"line {number}", fault, "correct it")
