"""Run `train.py` where PyTorch is: in this Python if it has it, else in a virtual
environment made once and kept.

`python3 launch.py ARGUMENTS OF train.py` needs nothing but the standard library.
Environments are kept in `$GPUYARD_CACHE/envs`, by default under `~/.cache/gpuyard`;
delete them as you like.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from data import cache_folder
from options import parse

FOLDER = Path(__file__).resolve().parent
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
KEY_CHARACTERS = 12


class PreparationError(Exception):
    """The environment could not be made; the message says what would help."""


def environment_python() -> Path:
    """A Python that has what `requirements.txt` asks for, made now if there is none;
    PreparationError if that fails.
    """
    requirements = (FOLDER / "requirements.txt").read_text()
    if _satisfied(requirements):
        return Path(sys.executable)
    envs = cache_folder() / "envs"
    folder = envs / f"nanogpt-{_key(requirements)}"
    python = folder / "bin" / "python"
    complete = folder / ".complete"
    envs.mkdir(parents=True, exist_ok=True)
    with _locked(envs / f".{folder.name}.lock") as lock:
        # The Python that it was made with may be gone since, and its link in the
        # environment then leads nowhere.
        if not (complete.exists() and python.exists()):
            _build(folder, requirements, lock)
            complete.touch()
    return python


def _satisfied(requirements: str) -> bool:
    """Whether this Python has every `name==version` of `requirements`; of a version
    like 2.13.0+cpu, 2.13.0 counts.
    """
    for line in requirements.split():
        name, _, version = line.partition("==")
        try:
            if metadata.version(name).partition("+")[0] != version:
                return False
        except metadata.PackageNotFoundError:
            return False
    return True


def _key(requirements: str) -> str:
    """Environments with the same key can stand for each other."""
    parts = (
        requirements,
        platform.python_version(),
        sysconfig.get_platform(),
        str(_has_gpu()),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:KEY_CHARACTERS]


def _has_gpu() -> bool:
    return (
        Path("/proc/driver/nvidia").exists() or shutil.which("nvidia-smi") is not None
    )


@contextmanager
def _locked(path: Path) -> Generator[int]:
    """Hold the lock on the file `path`, after a line if that takes waiting; its
    descriptor.
    """
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another run is preparing the environment: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def _build(folder: Path, requirements: str, lock: int) -> None:
    """Make the environment in `folder`, in place since environments cannot be moved;
    PreparationError if that fails.
    """
    if not (find_spec("venv") and find_spec("ensurepip")):
        raise PreparationError(
            f"{sys.executable} cannot make virtual environments: install python3-venv"
            " (apt install python3-venv), or give this Python"
            f" {' '.join(requirements.split())}"
        )
    _say(
        "preparing the environment (once):"
        f" {' '.join(requirements.split()).replace('==', ' ')} …"
    )
    started = time.monotonic()
    if folder.exists():
        shutil.rmtree(folder)
    _run([sys.executable, "-m", "venv", str(folder)], lock)
    pip = [str(folder / "bin" / "python"), "-m", "pip"]
    # PyPI's PyTorch for Linux brings gigabytes of CUDA, which only a GPU needs; but who
    # has named an index means it.
    index = [] if _has_gpu() or _own_index(pip) else ["--extra-index-url", CPU_INDEX]
    _run(
        [
            *pip,
            "install",
            "-qq",
            "--no-input",
            *index,
            "-r",
            str(FOLDER / "requirements.txt"),
        ],
        lock,
    )
    _say(f"environment ready in {time.monotonic() - started:.0f} s")


def _own_index(pip: list[str]) -> bool:
    """Whether pip's configuration or its variables say where packages come from."""
    lines = subprocess.run(
        [*pip, "config", "list"], capture_output=True, text=True, check=False
    ).stdout.splitlines()
    names = {line.partition("=")[0].rpartition(".")[2] for line in lines}
    return not names.isdisjoint(
        {"index-url", "extra-index-url", "find-links", "no-index"}
    )


def _run(command: list[str], lock: int) -> None:
    """Run `command` to its end; it inherits the lock, so that if we are killed no other
    run builds beside it.
    """
    code = subprocess.run(command, pass_fds=[lock], check=False).returncode
    if code:
        raise PreparationError(
            f"the environment could not be prepared: {' '.join(command)} failed with"
            f" code {code}"
        )


def _say(line: str) -> None:
    print(line, flush=True)


def main() -> NoReturn:
    """Become `train.py`, with the arguments given."""
    # Asked for a checkpoint before there is anything to save; train.py, which inherits
    # this, listens from its start.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    parse()  # a wrong argument is better told before a long download than after
    try:
        python = environment_python()
    except (PreparationError, OSError) as error:
        sys.exit(f"launch.py: error: {error}")
    os.execv(python, [str(python), str(FOLDER / "train.py"), *sys.argv[1:]])


if __name__ == "__main__":
    main()
