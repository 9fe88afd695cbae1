"""Builds the environment of an attempt's packages, then becomes the attempt's program.

It runs in place of that program: in its control groups, under its limits and account,
and its output goes to the same log. So to build, which runs code of the packages, can
do no more than the job. It uses the standard library alone, because the account may be
unable to read other modules:

    python -I -S build_packages.py ORDER COMMAND…

ORDER is JSON, see `Order`. A file beside the folder says that it is complete; it is
written last, so what a killed build leaves is no environment.
"""

import configparser
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

# A checkpoint signal must not end the build.
_IGNORED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
_CREDENTIALS = re.compile(r"(?<=://)[^/\s]+@")
_READ_ONLY = ~0o222
LOCKED_LIST = "gpuyard-packages.txt"
# What pip calls it, and what uv does; a list where pip separates by spaces.
_PIP_OPTIONS = (
    ("index-url", ("UV_DEFAULT_INDEX", "UV_INDEX_URL"), False),
    ("extra-index-url", ("UV_INDEX", "UV_EXTRA_INDEX_URL"), False),
    ("find-links", ("UV_FIND_LINKS",), True),
    ("trusted-host", ("UV_INSECURE_HOST",), False),
    ("cert", ("SSL_CERT_FILE",), False),
)


class BuildOrder(NamedTuple):
    """What to build. `kind` and `source` are those of the list of packages, whose files
    are in `lists`; `cache` is where uv keeps what it has fetched.
    """

    folder: str
    lists: str
    cache: str
    uv: str
    kind: str
    source: str
    python: str


class BuildError(Exception):
    """The environment cannot be built; what uv says is in the log."""


def main() -> None:
    """Build what the order names, unless it is there, and become the command."""
    order = BuildOrder(**json.loads(sys.argv[1]))
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    try:
        _have(order)
    except (BuildError, OSError) as error:
        _say(f"the packages of {order.source} could not be installed: {error}")
        sys.exit(1)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_DFL)
    _become(sys.argv[2:])


def _have(order: BuildOrder) -> None:
    """Have the environment, whoever builds it."""
    complete = Path(f"{order.folder}.complete")
    with open(f"{order.folder}.lock", "w", encoding="utf-8") as lock:  # noqa: PTH123
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another job is installing these packages; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            _build(order, complete, lock.fileno())


def _build(order: BuildOrder, complete: Path, lock: int) -> None:
    began = time.monotonic()
    _say(f"installing the packages of {order.source}")
    _remove(Path(order.folder))
    environment = for_uv(os.environ, order)
    arguments = pip_arguments(os.environ)
    make = [
        "venv",
        "--quiet",
        "--no-project",
        *_with("--python", order.python),
        order.folder,
    ]
    if order.kind == "uv.lock":
        install = ["sync", "--frozen", "--no-install-project"]
        install += ["--no-install-workspace"]
    else:
        install = ["pip", "install", "--python", order.folder, *arguments]
        install += ["-r", order.kind]
    for words in (make, install):
        _run(order, words, environment, lock)
    program = f"{order.folder}/bin/python"
    _note_packages(order, environment)
    # It also compiles what each start of this Python imports.
    subprocess.run([program, "-c", ""], stdin=subprocess.DEVNULL, check=True)
    _make_read_only(order.folder)
    fresh = Path(f"{complete}.new")
    fresh.write_text("")
    os.sync()  # after a power cut, what is complete must be whole
    fresh.rename(complete)
    _say(f"installed in {time.monotonic() - began:.0f} s")


def _run(
    order: BuildOrder, words: Sequence[str], environment: Mapping[str, str], lock: int
) -> None:
    """Run uv; what it says goes to the log, without passwords. BuildError if it
    fails.

    It inherits the lock: while it lives, nobody else builds in this folder.
    """
    with subprocess.Popen(
        [order.uv, *words],
        cwd=order.lists,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(lock,),
        encoding="utf-8",
        errors="replace",
    ) as process:
        for line in process.stdout or ():
            _write(without_passwords(line))
    if process.returncode:
        shown = " ".join(words[:2] if words[0] == "pip" else words[:1])
        raise BuildError(f"uv {shown} ended with {process.returncode}")


def without_passwords(text: str) -> str:
    """The text without the passwords of the addresses in it."""
    return _CREDENTIALS.sub("***@", text)


def _note_packages(order: BuildOrder, environment: Mapping[str, str]) -> None:
    """Write which versions there are into the environment."""
    words = [order.uv, "pip", "freeze", "--python", order.folder]
    done = subprocess.run(
        words,
        cwd=order.lists,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    listed = without_passwords(done.stdout)
    Path(order.folder, LOCKED_LIST).write_text(listed, encoding="utf-8")


def for_uv(given: Mapping[str, str], order: BuildOrder) -> dict[str, str]:
    """The environment of uv: the job's, and what the settings of pip say of indexes
    where those of uv say nothing.
    """
    environment = {
        name: value
        for name, value in given.items()
        if name not in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")
    }
    bin_folder = f"{order.folder}/bin"
    places = environment.get("PATH", os.defpath).split(":")
    environment["PATH"] = ":".join(place for place in places if place != bin_folder)
    _take_pip_settings(environment)
    return environment | {
        "UV_CACHE_DIR": order.cache,
        "UV_PROJECT_ENVIRONMENT": order.folder,
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_COMPILE_BYTECODE": "1",
        "UV_NO_PROGRESS": "1",
        "NO_COLOR": "1",
    }


def _take_pip_settings(environment: MutableMapping[str, str]) -> None:
    settings = _pip_settings(environment)
    for option, names, is_list in _PIP_OPTIONS:
        value = settings.get(option, "")
        if not value or any(environment.get(name) for name in names):
            continue
        separator = "," if is_list else " "
        environment[names[0]] = separator.join(value.split())


def pip_arguments(environment: Mapping[str, str]) -> list[str]:
    wanted = _pip_settings(environment).get("no-index", "").lower()
    return ["--no-index"] if wanted in ("1", "true", "yes", "on") else []


def _pip_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings of pip: of its files, and above them those of the environment."""
    home = environment.get("HOME", "")
    files = [
        "/etc/pip.conf",
        f"{home}/.pip/pip.conf",
        f"{environment.get('XDG_CONFIG_HOME') or f'{home}/.config'}/pip/pip.conf",
    ]
    own = environment.get("PIP_CONFIG_FILE")
    found: dict[str, str] = {}
    for file in [own] if own else files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, ValueError):
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                found |= dict(parser.items(section))
    for option in (*(name for name, _, _ in _PIP_OPTIONS), "no-index"):
        variable = f"PIP_{option.upper().replace('-', '_')}"
        if environment.get(variable):
            found[option] = environment[variable]
    return found


def _with(option: str, value: str) -> list[str]:
    return [option, value] if value else []


def _make_read_only(folder: str) -> None:
    for above, _, files in os.walk(folder):
        for name in files:
            path = f"{above}/{name}"
            if not os.path.islink(path):  # noqa: PTH114  (there are many files)
                os.chmod(path, os.stat(path).st_mode & _READ_ONLY)  # noqa: PTH101, PTH116
        os.chmod(above, 0o555)  # noqa: PTH101


def _remove(folder: Path) -> None:
    """Remove what a killed build has left."""
    for above, folders, _ in os.walk(folder):
        for path in (above, *(f"{above}/{name}" for name in folders)):
            if not os.path.islink(path):  # noqa: PTH114
                os.chmod(path, 0o700)  # noqa: PTH101
    shutil.rmtree(folder, ignore_errors=True)


def _become(command: Sequence[str]) -> NoReturn:
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        _say(f"{command[0]} cannot be executed: {error.strerror}")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


def _say(text: str) -> None:
    _write(f"gpuyard: {text}\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
