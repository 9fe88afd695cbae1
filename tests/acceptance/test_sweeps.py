"""Sweeps as people use them: one program many times, killed and resumed."""

import json
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest

from tests.support.instance import REAL_GPUYARD, TestInstance
from tests.support.receiver import receiver
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command here runs many jobs: on a busy machine that takes minutes."""
    patient = partialmethod(TestInstance.run, timeout=300)
    monkeypatch.setattr(TestInstance, "run", patient)


# What a run comes to is the square of its x.
TRAIN = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float)
parser.add_argument("--kind", default="a")
x = parser.parse_args().x
for step in range(1, 4):
    print(f"step {step} val_loss {x * x + 1 / step:.6f}", flush=True)
"""
FEW = ("--metric", "val_loss", "--cpus", "0.1")


@pytest.fixture
def script(instance: TestInstance) -> Path:
    path = instance.work / "train.py"
    path.write_text(TRAIN)
    return path


@pytest.mark.usefixtures("script")
def test_a_sweep_over_an_unchanged_script_finds_the_best(
    instance: TestInstance,
) -> None:
    words = ("--param", "x=-1..2", "--param", "kind=a,b", "--parallel", "3")
    with receiver() as there:
        told_of = ("--notify", there.url, "--deadline", "8h")
        told = instance.ok("sweep", "train.py", *words, *FEW, *told_of)
        wait_until(there.bodies, what="the end to be told of")
    assert "best: train-2  val_loss 0.333333  x=0 kind=a" in told
    assert "train: completed · 8 completed" in told

    sweep = instance.json("sweep", "show", "train")
    assert (sweep["state"], sweep["trials"], len(sweep["runs"])) == ("completed", 8, 8)
    assert sweep["best"]["parameters"] == {"x": "0", "kind": "a"}
    tried = {tuple(run["parameters"].values()) for run in sweep["runs"]}
    assert len(tried) == 8
    (listed,) = instance.json("sweep", "list")["items"]
    assert listed == sweep
    line = instance.ok("sweep", "list").splitlines()[1].split()
    assert line == ["train", "completed", "8", "8", "val_loss", "0.333333", "train-2"]
    rows = instance.ok("sweep", "show", "train").splitlines()
    assert rows[1].split()[:4] == ["2", "train-2", "completed", "0.333333"]
    assert "train-5" in instance.ok("jobs", "--label", "sweep=train")
    deadlines = {job["deadline"] for job in instance.json("jobs")["items"]}
    assert len(deadlines - {None}) == 1
    gate = instance.job(sweep["gate"])
    assert gate.state == "completed"
    assert [body["job_id"] for body in there.bodies()] == [gate.id]
    assert there.url not in str(gate.spec)

    again = instance.ok("sweep", "train.py", *words, *FEW, "--trials", "2")
    assert "train-2: completed · 2 completed" in again, "its name gets a number"
    taken = instance.run("sweep", "train.py", *words, *FEW, "--name", "train")
    assert taken.returncode == 4
    assert "There is a sweep train already" in taken.stderr


def test_a_file_says_the_same_and_flags_change_it(instance: TestInstance) -> None:
    folder = instance.work / "deep"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "sweep.toml").write_text(
        'name = "quadratic"\nmetric = "val_loss"\nmethod = "tpe"\ntrials = 12\n'
        'seed = 5\n\n[parameters]\nx = { low = -10.0, high = 10.0 }\nkind = ["a"]\n\n'
        '[job]\ncommand = ["python3", "train.py"]\nresources = { cpus = 0.1 }\n'
    )
    words = ("sweep", "deep/sweep.toml", "--trials", "4", "--parallel", "2", "--json")
    done = json.loads(instance.ok(*words))
    assert (done["name"], done["method"], done["trials"]) == ("quadratic", "tpe", 4)
    assert done["counts"] == {"completed": 4}
    assert done["best"]["value"] == min(run["value"] for run in done["runs"])


def bad_runs(instance: TestInstance, *words: str) -> subprocess.CompletedProcess[str]:
    done = instance.run("sweep", *words)
    assert done.returncode != 0
    return done


def test_a_sweep_whose_every_run_fails_stops_early_and_says_why(
    instance: TestInstance,
) -> None:
    program = ("--", "sh", "-c", "echo no such file: {x}; exit 3")
    done = bad_runs(instance, "--name", "bad", "--param", "x=1..50", *FEW, *program)
    assert done.returncode == 1
    assert "each of its first 3 runs of 50 has failed" in done.stderr
    assert "exit code 3" in done.stderr
    assert "no such file: 1" in done.stderr
    sweep = instance.json("sweep", "show", "bad")
    assert (sweep["state"], len(sweep["runs"])) == ("failed", 3)
    resumed = instance.run("sweep", "resume", "bad")
    assert "Start a new sweep" in resumed.stderr

    silent = ("--", "sh", "-c", "echo step 1 loss 0.5 for {x}")
    done = bad_runs(instance, "--name", "dumb", "--param", "x=1,2", *FEW, *silent)
    assert "never showed val_loss, but loss" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--param", "x=1..9"), "metric: is missing"),
        (("--metric", "m"), "parameters: is empty"),
        (("--metric", "m", "--param", "x"), "'x' has no value"),
        (
            ("--metric", "m", "--param", "x=1", "--param", "x=2"),
            "--param: names a parameter twice",
        ),
        (("--metric", "m", "--param", "x=9..1"), "param x: goes from 9 down to 1"),
        (("--metric", "m", "--param", "x=0.1..1"), "give --trials N"),
        (("--metric", "m", "--param", "x=1", "--goal", "up"), "goal"),
        (
            ("--metric", "m", "--param", "x=1", "--method", "top", "--trials", "2"),
            "method",
        ),
    ],
)
def test_bad_input_is_one_error_and_nothing_is_recorded(
    shared_instance: TestInstance, words: tuple[str, ...], said: str
) -> None:
    done = bad_runs(shared_instance, *words, "--", "true")
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert shared_instance.json("sweep", "list")["items"] == []


def test_a_run_that_is_worse_than_the_others_is_given_up(
    instance: TestInstance,
) -> None:
    # The second would go on for ever.
    program = (
        "for i in 1 2 3; do echo step $i val_loss {x}; done;"
        " if [ {x} = 9 ]; then exec sleep 1000; fi"
    )
    (instance.work / "pruned.toml").write_text(
        'name = "pruned"\nmetric = "val_loss"\npruner = "median"\n'
        "pruner_options = { n_startup_trials = 1 }\n"
        f'[parameters]\nx = [1, 9, 2]\n[job]\ncommand = ["sh", "-c", "{program}"]\n'
    )
    done = json.loads(instance.ok("sweep", "pruned.toml", "--json"))
    states = [run["state"] for run in done["runs"]]
    assert states == ["completed", "pruned", "completed"]
    assert (done["state"], done["best"]["number"]) == ("completed", 0)
    assert done["runs"][1]["name"] == "pruned-1-pruned"


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_a_sweep_is_stopped_and_goes_on_later(instance: TestInstance) -> None:
    marks = instance.work / "marks"
    program = (
        "echo {x} >> marks; while [ {x} = 2 ] && [ ! -e go ]; do sleep 0.1; done;"
        " echo step 1 val_loss {x}"
    )
    words = ("--name", "slow", "--param", "x=1..3", *FEW, "--", "sh", "-c", program)
    driving = instance.popen("sweep", *words)
    wait_until(lambda: lines_of(marks) == ["1", "2"], 240, "the second run")
    stopped = json.loads(instance.ok("sweep", "stop", "slow", "--json"))
    assert stopped["state"] == "stopped"
    assert stopped["counts"] == {"completed": 1, "cancelled": 1}
    driving.communicate(timeout=240)
    assert driving.returncode == 1
    (instance.work / "go").touch()
    told = instance.ok("sweep", "resume", "slow")
    assert "slow: completed · 3 completed" in told
    assert lines_of(marks) == ["1", "2", "2", "3"], "the second went on where it was"
    assert "slow: completed" in instance.ok("sweep", "resume", "slow")


def test_other_jobs_wait_for_a_sweep_as_for_a_job(instance: TestInstance) -> None:
    program = "while [ ! -e go ]; do sleep 0.1; done; echo step 1 val_loss {x}"
    words = ("--name", "gate", "--param", "x=1,2", *FEW, "--", "sh", "-c", program)
    with instance.popen("sweep", *words) as driving:
        wait_until(lambda: instance.json("sweep", "list")["items"], 240, "the sweep")
        after = ("--after", "gate", "--name", "after", "--", "echo", "after")
        after_id = instance.ok("run", "-d", *after).strip()
        assert instance.job(after_id).state == "queued"
        (instance.work / "go").touch()
        assert instance.wait(after_id).state == "completed"
        driving.communicate(timeout=240)
    assert driving.returncode == 0


RUNS = 14


def begun(instance: TestInstance, *words: str) -> subprocess.Popen[bytes]:
    """The command as a process of its own, which can be killed."""
    with errors_of(instance).open("ab") as errors:
        return subprocess.Popen(
            [*REAL_GPUYARD, "sweep", *words],
            cwd=instance.work,
            env=instance.environment,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )


def errors_of(instance: TestInstance) -> Path:
    """What the commands that were `begun` have said on stderr."""
    return instance.work / "errors"


def test_a_sweep_that_is_killed_again_and_again_loses_no_run_and_repeats_none(
    instance: TestInstance,
) -> None:
    instance.ok("up")
    marks = instance.work / "marks"
    # A run ends only when the test allows it, so the sweep is never too quick to kill.
    allowed = instance.work / "allowed"
    program = (
        "echo {trial} >> marks; until [ {trial} -lt $(cat allowed) ]; do sleep 0.05;"
        " done; echo step 1 val_loss {x}"
    )
    words = ("--name", "k", "--param", f"x=1..{RUNS}", "--method", "tpe", *FEW)
    more = ("--parallel", "3", "--trials", str(RUNS), "--", "sh", "-c", program)
    chance = random.Random(0)
    allowed.write_text("0")
    driving = begun(instance, *words, *more)

    def there(count: int) -> Callable[[], Any]:
        return lambda: len(lines_of(marks)) >= count or driving.poll() is not None

    for target in (1, 4, 9):
        count = target + chance.randint(0, 2)
        allowed.write_text(str(count))
        wait_until(there(count), 240, f"{count} runs")
        assert driving.poll() is None, "it ended before it was killed"
        driving.send_signal(signal.SIGKILL)
        driving.wait(timeout=240)
        driving = begun(instance, "resume", "k")
    allowed.write_text(str(RUNS))
    driving.wait(timeout=240)
    sweep = instance.json("sweep", "show", "k")
    assert (sweep["state"], sweep["counts"]) == ("completed", {"completed": RUNS})
    assert [run["number"] for run in sweep["runs"]] == list(range(RUNS))
    assert Counter(lines_of(marks)) == Counter(map(str, range(RUNS)))


def test_two_commands_that_drive_one_sweep_make_each_run_once(
    instance: TestInstance,
) -> None:
    instance.ok("up")
    marks = instance.work / "marks"
    program = "echo {trial} >> marks; echo step 1 val_loss {x}"
    words = ("--name", "two", "--param", "x=1..12", "--method", "tpe", "--trials", "12")
    first = begun(instance, *words, *FEW, "--", "sh", "-c", program)
    wait_until(lambda: lines_of(marks), 240, "the first run")
    second = begun(instance, "resume", "two")
    for driving in (first, second):
        assert driving.wait(timeout=240) == 0, errors_of(instance).read_text()
    assert Counter(lines_of(marks)) == Counter(map(str, range(12)))
    assert instance.json("sweep", "show", "two")["counts"] == {"completed": 12}
