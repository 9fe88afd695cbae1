"""A Python that starts at once: an interpreter that has imported much forks the
processes.

`fast_python()` is a program that tests run instead of `sys.executable`. It passes the
command, the server and the agent (`-m gpuyard.cli.entry`, …) to a fork server, together
with its open files, and stands for the forked process: it forwards signals and ends as
that process ends. Any other command, and any whose environment or limits the fork
server does not share (see `server.py`), runs in the real interpreter. So does
everything below a process with `REAL_PYTHON` in its environment.

The forked process has a session and a pid of its own. Tests of process trees,
terminals, imports and memory therefore use the real interpreter. Where an agent dies
while jobs run (`REAL_AGENT`), it is a child of its keeper, as in life, which gets its
orphans: the keeper is forked, and forks the agent itself (but in the real interpreter
without root).
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.components import require
from tests.support.wait import wait_until

REAL_PYTHON = "TESTS_REAL_PYTHON"
REAL_AGENT = "TESTS_REAL_AGENT"
_HERE = Path(__file__).parent
# What the command, the server and the agent import, at once or later.
_OURS = (
    "gpuyard.cli.entry",
    "gpuyard.cli.main",
    "gpuyard.cli.slow_server",
    "gpuyard.server.__main__",
    "gpuyard.server.http_server",
    "gpuyard.node.agent",
    "gpuyard.devices.amd",
    "gpuyard.devices.nvml",
    "gpuyard.notify.delivery",
    "gpuyard.providers.docker.provider",
    # A server with a cluster would import a thousand modules, for a second.
    "gpuyard.providers.kubernetes.provider",
    "gpuyard.providers.slurm.provider",
    "gpuyard.client.sync",
    "gpuyard.studies.commands_run",
    "gpuyard.verification.commands_calibrate",
    "gpuyard.verification.session",
    "alembic.command",
    "anyio._backends._asyncio",
    "fastapi.telemetry._runtime",
    "httpx",
    "rich.console",
    "rich.table",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
    "typer._adapters",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
    "websockets.asyncio.client",
)


# Libraries of mathematics and tables would start threads, which do not survive a fork.
_NO_THREADS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
# What `gpuyard study` imports besides: a second of work for each command, but a fork of
# all this costs twice as much as another.
_OF_STUDIES = (
    "gpuyard.studies.baseline",
    "gpuyard.studies.pipeline",
    "gpuyard.studies.plots",
    "gpuyard.studies.report",
    "matplotlib.backends.backend_svg",
    "matplotlib.figure",
    "matplotlib.layout_engine",
    "openai",
    "pyarrow.parquet",
)
_MODULES = (
    "gpuyard.cli.entry",
    "gpuyard.server",
    "gpuyard.server.joined_node",
    "gpuyard.node.agent",
)
_CALLS = ("gpuyard.cli.main:click_command",)


@cache
def fast_python() -> str:
    """The program for the command and the server; the first call starts the fork
    server.
    """
    return start_fork_server(sys.executable, _OURS, _MODULES, _CALLS)


@cache
def study_python() -> str:
    """The same for `gpuyard study`, from a fork server of its own."""
    imports = (*_OURS, *_OF_STUDIES)
    return start_fork_server(sys.executable, imports, _MODULES, _CALLS)


def start_fork_server(
    python: str,
    imports: Sequence[str],
    modules: Sequence[str] = (),
    calls: Sequence[str] = (),
    *,
    programs: bool = False,
) -> str:
    """A program that runs `modules` as forks of `python` with `imports`, in which the
    functions `calls` (`module:name`) were called; scripts and `-c`, too, with
    `programs`.

    It is there until this process ends. All workers of pytest-xdist share it.
    """
    require("compiler", shutil.which("gcc") is not None)
    wishes = {
        "imports": list(imports),
        "calls": list(calls),
        "modules": list(modules),
        "programs": programs,
    }
    folder = _folder_for(python, wishes)
    launcher = folder / "python"
    door = folder / "socket"
    with _locked(folder):
        # Open until this process ends, however it does.
        if _hold(folder) is None:
            _clear(folder)
            _make_launcher(launcher, python, door)
            settings = {"socket": str(door), "launcher": str(launcher), **wishes}
            _start(folder, python, settings)
    return str(launcher)


def _folder_for(python: str, wishes: dict[str, Any]) -> Path:
    """Where this fork server is for all workers of the tests that are running; without
    workers, one of our own.
    """
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex
    words = json.dumps([run, python, wishes])
    return Path("/tmp", f"gy-fork-{hashlib.sha256(words.encode()).hexdigest()[:12]}")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder, which is made: meanwhile nobody else starts a fork server there,
    and one that is there does not end.
    """
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        held = os.open(folder, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
        if folder.exists() and folder.stat().st_ino == os.fstat(held).st_ino:
            break
        os.close(held)  # a fork server ended, and removed it
    try:
        yield
    finally:
        os.close(held)


def _hold(folder: Path) -> int | None:
    """Keep the fork server of this folder from ending; None if there is none."""
    try:
        return os.open(folder / "held", os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


def _clear(folder: Path) -> None:
    for left in folder.iterdir():
        left.unlink()


def _make_launcher(launcher: Path, python: str, door: Path) -> None:
    defines = [f'-DPYTHON="{python}"', f'-DSOCKET="{door}"']
    source = str(_HERE / "launcher.c")
    subprocess.run(["gcc", "-O1", *defines, "-o", launcher, source], check=True)
    # A program finds others of its environment beside its interpreter.
    for program in Path(python).parent.iterdir():
        if not program.name.startswith("python"):
            (launcher.parent / program.name).symlink_to(program)


def _start(folder: Path, python: str, settings: dict[str, Any]) -> None:
    """Start a fork server. It ends, with what it forked and the folder, when nobody
    holds it any more.
    """
    os.mkfifo(folder / "held")
    held = os.open(folder / "held", os.O_RDONLY | os.O_NONBLOCK)
    assert _hold(folder) is not None
    process = subprocess.Popen(
        [python, str(_HERE / "server.py"), json.dumps(settings)],
        stdin=held,
        cwd="/",
        start_new_session=True,
        env={**os.environ, **_NO_THREADS},
    )
    os.close(held)
    door = Path(settings["socket"])
    wait_until(
        lambda: door.exists() or process.poll() is not None, 110, "the fork server"
    )
    assert process.poll() is None, "the fork server did not start"
