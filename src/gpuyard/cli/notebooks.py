"""Notebooks as jobs: `gpuyard run train.ipynb` runs its cells one after the other."""

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from gpuyard.domain.errors import InvalidInputError

_SUFFIX = ".ipynb"
_EXECUTED = ".executed.ipynb"


def is_notebook(word: str) -> bool:
    """Whether the first word of a command is a notebook."""
    return word.endswith(_SUFFIX)


def notebook_command(words: Sequence[str]) -> list[str]:
    """The command of a job that runs a notebook with these arguments."""
    (notebook, *arguments) = words
    return ["python3", "-", notebook, _executed(notebook), *arguments]


def notebook_fields(
    notebook: str, folder: Path, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """What such a job has besides its command: the program that runs the cells, as its
    input, and the executed notebook as an artifact, also when it fails.

    InvalidInputError if it is not in the `folder` of this machine, or the job is to
    read something else.
    """
    if folder.is_dir() and not (folder / notebook).is_file():
        fault = f"there is no {folder / notebook}"
        raise InvalidInputError.of("COMMAND", fault, "name a notebook that exists")
    for field in ("stdin", "interactive"):
        if fields.get(field):
            fault = "is given, and a notebook reads no input"
            raise InvalidInputError.of(f"--{field}", fault, "leave it out")
    program = resources.files("gpuyard.cli").joinpath("notebook_program.py")
    return {
        "stdin": program.read_text(),
        "artifacts": [*fields.get("artifacts", []), _executed(notebook)],
        "artifacts_always": True,
    }


def _executed(notebook: str) -> str:
    return f"{notebook.removesuffix(_SUFFIX)}{_EXECUTED}"
