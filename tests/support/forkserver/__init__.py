"""A Python that starts at once: an interpreter that has imported much forks the
processes.

`fast_python()` is a program that tests run instead of `sys.executable`. It passes the
command, the server and the agent (`-m gpuyard.cli.entry`, …) to a fork server, together
with its open files, and stands for the forked process: it forwards signals and ends as
that process ends. Any other command, and any whose environment or limits the fork
server does not share (see `server.py`), runs in the real interpreter. So does
everything below a process with `REAL_PYTHON` in its environment.

The forked process has a session and a pid of its own. Tests of process trees,
terminals, imports and memory therefore use the real interpreter. So do tests in which
an agent dies while jobs run (`REAL_AGENT`): the keeper gets no orphans of a forked one.
"""

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.support.components import require
from tests.support.wait import wait_until

REAL_PYTHON = "TESTS_REAL_PYTHON"
REAL_AGENT = "TESTS_REAL_AGENT"
_HERE = Path(__file__).parent
# What the command, the server and the agent import, at once or later.
_OURS = (
    "gpuyard.cli.entry",
    "gpuyard.cli.main",
    "gpuyard.server.__main__",
    "gpuyard.node.agent",
    "gpuyard.notify.delivery",
    "gpuyard.client.sync",
    "alembic.command",
    "httpx",
    "rich.console",
    "rich.table",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
    "websockets.asyncio.client",
)


@cache
def fast_python() -> str:
    """The program for the command and the server; the first call starts the fork
    server.
    """
    modules = ["gpuyard.cli.entry", "gpuyard.server", "gpuyard.node.agent"]
    return start_fork_server(sys.executable, _OURS, modules)


def start_fork_server(
    python: str,
    imports: Sequence[str],
    modules: Sequence[str] = (),
    *,
    programs: bool = False,
) -> str:
    """A program that runs `modules` as forks of `python` with `imports`; scripts and
    `-c`, too, with `programs`.

    It is there until this process ends.
    """
    require("compiler", shutil.which("gcc") is not None)
    folder = Path(tempfile.mkdtemp(prefix="gy-fork-", dir="/tmp"))
    launcher = folder / "python"
    door = folder / "socket"
    defines = [f'-DPYTHON="{python}"', f'-DSOCKET="{door}"']
    source = str(_HERE / "launcher.c")
    subprocess.run(["gcc", "-O1", *defines, "-o", launcher, source], check=True)
    # A program finds others of its environment beside its interpreter.
    for program in Path(python).parent.iterdir():
        if not program.name.startswith("python"):
            (folder / program.name).symlink_to(program)
    settings = {
        "socket": str(door),
        "launcher": str(launcher),
        "imports": list(imports),
        "modules": list(modules),
        "programs": programs,
    }
    # It ends, with what it forked and the folder, when this process closes the pipe or
    # dies.
    process = subprocess.Popen(
        [python, str(_HERE / "server.py"), json.dumps(settings)],
        stdin=subprocess.PIPE,
        cwd="/",
        start_new_session=True,
        # Libraries of mathematics would start threads, which do not survive a fork.
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    atexit.register(process.communicate)
    wait_until(
        lambda: door.exists() or process.poll() is not None, 110, "the fork server"
    )
    assert process.poll() is None, "the fork server did not start"
    return str(launcher)
