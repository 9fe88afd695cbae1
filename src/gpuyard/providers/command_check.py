"""Whether the command of a job can start on this machine, as far as one can tell,
and what to write instead.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from gpuyard.domain.errors import InvalidInputError

# Which program runs a file that is none.
_READERS = {
    ".py": "python3 {}",
    ".sh": "bash {}",
    ".ipynb": "jupyter nbconvert --to notebook --execute {}",
}
_GPU_VARIABLES = frozenset(
    {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"}
)


def checked_folder(workdir: str | None) -> Path:
    """The folder that a job runs in; InvalidInputError if there is none."""
    if workdir is None:
        return Path.home()
    folder = Path(workdir)
    if not folder.is_absolute():
        raise InvalidInputError.of(
            "workdir", f"is {workdir!r}", "give an absolute path"
        )
    if not folder.is_dir():
        raise InvalidInputError.of(
            "workdir", f"{workdir} is not a folder on this machine", "create it first"
        )
    return folder


def check_command(command: Sequence[str], base: Path, path: str | None) -> None:
    """Refuse a program that does not exist in `base` or on `path` (None: our own PATH),
    and a script that is missing. InvalidInputError says what to write instead.
    """
    _check_program(command[0], base, path)
    _check_script(command, base)


def _check_program(program: str, base: Path, path: str | None) -> None:
    if path is None:
        path = os.environ.get("PATH", os.defpath)
    wanted = str(base / program) if "/" in program else program
    if shutil.which(wanted, path=path) is not None:
        return
    _refuse_lookalikes(program, base)
    fault = f"{program} is not found"
    remedy = "check the spelling, or give the program's whole path"
    raise InvalidInputError.of("command[0]", fault, remedy)


def _refuse_lookalikes(program: str, base: Path) -> None:
    """Explain common mistakes: a folder, a file of the workdir that is no program, a
    line in quotes, a variable in front.
    """
    if (base / program).is_dir():
        raise InvalidInputError.of(
            "command[0]", f"{program} is a folder", "name the script in it"
        )
    if (base / program).is_file():
        _refuse_file(program, base)
    if " " in program.strip():
        remedy = "leave out the quotes around it, or write: sh -c 'LINE'"
        raise InvalidInputError.of(
            "command[0]", f"{program!r} is a whole line, not a program", remedy
        )
    variable, is_set, _ = program.partition("=")
    if is_set and variable.isidentifier():
        fault = f"{variable}=… is a variable, not a program"
        raise InvalidInputError.of("command[0]", fault, _variable_remedy(variable))


def _refuse_file(program: str, base: Path) -> None:
    is_program = os.access(base / program, os.X_OK)
    runner = _READERS.get(Path(program).suffix)
    if is_program:
        fault = f"{program} is not on the PATH"
        remedy = f"write ./{program}"
    elif runner is not None:
        fault = f"{program} is not executable"
        remedy = f"name what runs it: {runner.format(program)}"
    else:
        fault = f"{program} is not executable"
        remedy = f"chmod +x {program} if it is a program"
    raise InvalidInputError.of("command[0]", fault, remedy)


def _variable_remedy(variable: str) -> str:
    if variable in _GPU_VARIABLES:
        return "ask for GPUs, such as --gpus 1: gpuyard chooses them and sets it"
    return f"write --env {variable}=VALUE before the program, or environment in a file"


def _check_script(command: Sequence[str], base: Path) -> None:
    """Refuse `python3 train.py` when train.py is missing or cannot be read."""
    is_interpreter = Path(command[0]).name.startswith(("python", "bash", "sh"))
    if not is_interpreter or len(command) < 2:
        return
    script = command[1]
    if script.startswith("-") or not script.endswith((".py", ".sh")):
        return
    target = base / script
    if not target.is_file():
        raise InvalidInputError.of(
            "command[1]",
            f"there is no script {script} in {base}",
            "check the path or workdir",
        )
    if not os.access(target, os.R_OK):
        raise InvalidInputError.of(
            "command[1]", f"the script {script} is not readable", f"chmod u+r {target}"
        )
