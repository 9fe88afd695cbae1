"""What a job ran, through the command; and the same once more."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.storage.untrusted import remove_tree
from tests.support.instance import TestInstance, make_instance
from tests.support.programs import run_program
from tests.support.refusal import refused
from tests.support.wheels import make_wheel, requirements

TRAINING = """
import json, os, random
import small_optimizer
API_KEY = "abcdefgh12345678"
random.seed(int(os.environ["GPUYARD_SEED"]))
weight = 0.0
for step in range(200):
    x = random.random()
    error = weight * x - 3.0 * x
    weight = small_optimizer.step(weight, error * x)
    loss = error * error
print("GPUYARD_METRIC", json.dumps({"step": step, "loss": loss}))
"""
OPTIMIZER = "def step(weight, gradient):\n    return weight - 0.1 * gradient\n"


@pytest.fixture
def instance() -> Iterator[TestInstance]:
    plain = {"PIP_CONFIG_FILE": "/dev/null", "UV_NO_CONFIG": "1"}
    with make_instance(**plain) as made:
        yield made


def git(folder: Path, *words: str) -> str:
    me = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    done = run_program(["git", *me, *words], cwd=folder)
    return done.stdout.strip()


def test_a_run_is_recorded_and_repeats_to_the_same_loss(instance: TestInstance) -> None:
    work = instance.work
    make_wheel(work / "wheels", "small_optimizer", OPTIMIZER)
    (work / "requirements.txt").write_text(
        requirements(work / "wheels", "small_optimizer")
    )
    (work / ".gitignore").write_text("wheels\n")
    (work / "train.py").write_text("# nothing yet\n")
    git(work, "init", "-q")
    git(work, "add", ".")
    git(work, "commit", "-qm", "first")
    (work / "train.py").write_text(TRAINING)
    words = ("run", "--seed", "7", "--packages", "auto", "--name", "first", "train.py")
    (said,) = [
        line for line in instance.ok(*words).splitlines() if "GPUYARD_METRIC" in line
    ]

    found = instance.json("record", "first")
    assert found["seed"] == "7"
    assert found["code"]["commit"] == git(work, "rev-parse", "HEAD")
    assert "+import small_optimizer" in found["code"]["diff"]
    assert "abcdefgh12345678" not in str(found), "keys are hidden"
    assert found["packages"]["file"] == "requirements.txt"
    assert found["packages"]["installed"] == ["small-optimizer==1.0"]
    facts = found["attempts"][0]["facts"]
    assert {"host", "gpuyard", "python"} <= facts.keys()
    shown = instance.ok("record", "first")
    assert "with changes of" in shown
    assert "code" in instance.ok("show", "first")
    assert instance.ok("record", "first", "--packages") == "small-optimizer==1.0\n"
    assert instance.ok("record", "first", "--diff") == found["code"]["diff"]

    assert instance.ok("record", "first", "--html", "run.html") == "wrote run.html\n"
    report = (work / "run.html").read_text()
    for part in (found["command"][-1], found["code"]["commit"][:12], "small-optimizer"):
        assert part in report
    assert "+import small_optimizer" in report
    assert "<tr><td>exit code</td><td>0</td></tr>" in report
    assert "<td>cost</td><td>$" in report
    assert "<polyline" in report

    # Everything has changed since, and the environment is a fresh one.
    (work / "train.py").write_text("raise SystemExit('other code')\n")
    (work / "requirements.txt").write_text("other-packages\n")
    remove_tree(instance.home.node / "packages")
    done = instance.run("rerun", "first")
    assert done.returncode == 0, done.stderr
    assert "installing the packages of requirements.txt" in done.stdout
    assert said in done.stdout.splitlines()
    assert "nothing differs from the run before" in done.stderr

    # What differs is told.
    make_wheel(work / "wheels", "small_optimizer", OPTIMIZER, version="2.0")
    remove_tree(instance.home.node / "packages")
    done = instance.run("rerun", "first")
    assert "package small-optimizer: 1.0 then, 2.0 now" in done.stderr

    trees = instance.home.code / "trees"
    shutil.rmtree(trees)
    trees.mkdir()
    problem = refused(instance, "rerun", "first", code=4)
    assert "The code of" in problem
    assert "no longer stored" in problem
