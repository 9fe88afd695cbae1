"""Job files of other tools, which `gpuyard submit` takes as well."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from gpuyard.foreign_files.translation import Translation

_HEAD_BYTES = 64_000


def is_batch_script(path: Path) -> bool:
    """Whether a file is a script with `#SBATCH` lines."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return has_sbatch_lines(head.decode(errors="replace"))


def has_sbatch_lines(text: str) -> bool:
    """Whether a text is a script with `#SBATCH` lines."""
    from gpuyard.foreign_files.sbatch_lines import is_batch_script as has_options

    return has_options(text)


def from_batch_script(
    text: str, path: Path, arguments: Sequence[str] = ()
) -> "Translation":
    """The job of a batch script, in the current folder as with `sbatch`.
    InvalidInputError.
    """
    from gpuyard.client.bodies import at_home_here
    from gpuyard.foreign_files import sbatch
    from gpuyard.foreign_files.translation import Translation

    label = "sbatch" if str(path) == "-" else str(path)
    found = sbatch.translate(text, label, arguments, Path.cwd(), os.environ)
    return Translation(at_home_here(found.body), found.notes)


def from_task(document: Any, path: Path) -> "Translation | None":
    """The job of a task of SkyPilot, in the current folder; None if the document is
    none. InvalidInputError.
    """
    from gpuyard.client.bodies import at_home_here
    from gpuyard.foreign_files import skypilot
    from gpuyard.foreign_files.translation import Translation

    if not skypilot.is_task(document):
        return None
    label = "skypilot" if str(path) == "-" else str(path)
    task = cast("dict[str, Any]", document)
    found = skypilot.translate(task, label, Path.cwd(), os.environ)
    return Translation(at_home_here(found.body), found.notes)
