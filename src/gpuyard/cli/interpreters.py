"""Scripts that are named like programs: `train.py` runs with python3, `train.sh` with
bash.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

_INTERPRETERS = {".py": "python3", ".sh": "bash"}


def with_interpreter(words: Sequence[str], workdir: Path) -> list[str]:
    """The words of a command, with the interpreter in front that a script needs."""
    program = words[0]
    interpreter = _INTERPRETERS.get(Path(program).suffix)
    if interpreter is not None and _is_script(program, workdir):
        return [interpreter, *words]
    return list(words)


def _is_script(program: str, workdir: Path) -> bool:
    """Whether an interpreter must run it: a .py file, or a .sh file that is no program
    by itself.
    """
    file = workdir / program
    if program.endswith(".py"):
        return file.exists() or not shutil.which(program)
    if "/" in program:
        return file.is_file() and not os.access(file, os.X_OK)
    return file.is_file() and not shutil.which(program)
