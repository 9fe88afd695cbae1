"""A check looks like a job: what the executor's host sees of it, beside an ordinary job."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.instance import TestInstance
from tests.support.verifying import configure, executor, outcomes, section, verify

# What would tell a check from other work.
TELL_TALE = (
    "verif",
    "solver",
    "gpuyard_s",
    "check",
    "practice",
    "trusted",
    "rented",
    "other",
)
SPY = """
import json, os, sys
seen = {
    "words": sys.argv[1:],
    "environment": dict(os.environ),
    "folder": os.getcwd(),
    "files": {
        os.path.join(place, name): os.path.getsize(os.path.join(place, name))
        for place, _, names in os.walk(".")
        for name in names
    },
}
with open(LOG, "a") as log:
    log.write(json.dumps(seen) + "\\n")
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def spy(instance: TestInstance) -> tuple[str, Path]:
    """An interpreter that notes all it is given, and where."""
    log = instance.work / "seen.log"
    program = instance.work / "spy.py"
    program.write_text(SPY.replace("LOG", repr(str(log))))
    path = instance.work / "python-of-the-host"
    words = shlex.join([sys.executable, str(program)])
    path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    path.chmod(0o755)
    return str(path), log


def seen_in(log: Path) -> list[dict[str, Any]]:
    """What was noted, job by job."""
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.timeout(300)
def test_the_host_of_a_check_sees_what_it_sees_of_a_job(instance: TestInstance) -> None:
    python, log = spy(instance)
    configure(
        instance,
        section("verification", target=6, max_series=6, series_per_run=6),
        executor("trusted", "practice-6", trusted=True),
        executor("rented", "practice-6", python=python),
        executor("other", "practice-6", python=python, stream=False),
    )
    found = outcomes(verify(instance, "rented", "other"))
    assert set(found.values()) == {"passed"}, found
    (instance.work / "train.py").write_text("print(1)")
    instance.ok("run", "--cpus", "0.2", "--", python, "train.py")
    first, second, job = seen_in(log)
    for check in (first, second):
        assert set(check["environment"]) == set(job["environment"])
        same = job["environment"].items()
        environment = dict(check["environment"].items() - same)
        shown = json.dumps({**check, "environment": environment}).lower()
        for place in (instance.home.root, instance.work):
            shown = shown.replace(str(place).lower(), "")
        assert not [word for word in TELL_TALE if word in shown], shown
        (file,) = check["files"]
        assert check["words"] == [Path(file).name], "as a person starts a program"
    assert first["folder"] != second["folder"]
    assert set(first["files"].values()) != set(second["files"].values()), "its size"
    assert not list((instance.home.root / "programs").iterdir()), "all are removed"
