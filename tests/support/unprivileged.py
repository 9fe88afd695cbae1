"""An instance whose jobs have no more rights than any user has, and a job that looks
for what it should not find.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.support.components import require
from tests.support.forkserver import REAL_PYTHON
from tests.support.instance import TestInstance, make_instance

# Root without capabilities is to its own processes what any user is to theirs.
_NO_RIGHTS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
# Prints where one of the values stands: in what /proc shows of any process, or in a file
# below its arguments. It reads them backwards, because the ledger keeps what it reads.
_SEARCH = """
import os, pathlib, stat, sys

wanted = [value[::-1].encode() for value in sys.stdin.read().split()]
own = {os.getpid(), os.getppid()}

def look(path):
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return
        content = open(path, "rb").read(1 << 24)
    except (OSError, MemoryError):
        return
    for value in wanted:
        if value in content:
            print("FOUND", value.decode()[:4], path)

looked = 0
for process in pathlib.Path("/proc").iterdir():
    if not process.name.isdigit() or int(process.name) in own:
        continue
    looked += 1
    for name in ("environ", "cmdline"):
        look(process / name)
    try:
        for number in os.listdir(process / "fd"):
            look(process / "fd" / number)
        open(process / "mem", "rb").close()
        if b"gpuyard" in (process / "cmdline").read_bytes():
            print("FOUND mem", process)
    except OSError:
        pass
for root in sys.argv[1:]:
    for folder, _, names in os.walk(root):
        for name in names:
            looked += 1
            look(os.path.join(folder, name))
print("LOOKED", looked > 5)
"""


@contextmanager
def unprivileged_instance() -> Iterator[TestInstance]:
    """An instance of real interpreters; `up` starts its server."""
    require("other-users", os.getuid() == 0)
    with make_instance(**{REAL_PYTHON: "1"}) as instance:
        yield instance


def up(instance: TestInstance, **environment: str) -> None:
    """Start the server without capabilities, and with more variables. The commands that
    the test runs from then on may be forks.
    """
    done = subprocess.run(
        [*_NO_RIGHTS, sys.executable, "-m", "gpuyard.cli.entry", "up"],
        env={**instance.environment, **environment},
        cwd=instance.work,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    del instance.environment[REAL_PYTHON]


def search_from_a_job(instance: TestInstance, values: Sequence[str]) -> list[str]:
    """Where a job finds `values`: among all processes of its user, and in the home."""
    job_id = instance.submit(
        ["python3", "-c", _SEARCH, str(instance.home.root)],
        stdin=" ".join(value[::-1] for value in values),
    )
    job = instance.wait(job_id)
    output = instance.ok("logs", job_id)
    assert job.state == "completed", output
    assert "LOOKED True" in output
    return [line for line in output.splitlines() if line.startswith("FOUND")]
