"""A job of priority 5 takes the place of a preemptible one, which saves its work, waits, and goes on where it was."""

import sys

from tests.support.wait import wait_until
from tests.support.yard import TestYard

TRAINER = """
import os, pathlib, signal, sys, time

step = 0
resumed = os.environ.get("GPUYARD_RESUME_FROM")
if resumed:
    step = int(pathlib.Path(resumed).read_text())
    print("resumed from", step, flush=True)


def save(*_):
    pathlib.Path("model_1.ckpt").write_text(str(step))
    print("saved", step, flush=True)


signal.signal(signal.SIGUSR1, save)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("training", flush=True)
while not pathlib.Path("enough").exists():
    step += 1
    time.sleep(0.02)
"""


def all_cpus(yard: TestYard) -> float:
    """The cores of the one node: a job with these has it to itself."""
    yard.ok("up")
    node = wait_until(lambda: next(iter(yard.json("nodes")["items"]), None), timeout=30)
    return node["cpus"]


def test_an_urgent_job_preempts_a_trainer_which_resumes(yard: TestYard) -> None:
    (yard.work / "train.py").write_text(TRAINER)
    cpus = all_cpus(yard)
    trainer = yard.submit(
        [sys.executable, "train.py"], name="trainer", preemptible=True, resources={"cpus": cpus},
        checkpoint={"path": "*.ckpt", "signal": "USR1", "grace_s": 20},
    )  # fmt: skip
    wait_until(lambda: "training" in yard.ok("logs", trainer), timeout=30)

    patient = yard.submit(["true"], name="patient", priority=4, resources={"cpus": cpus})
    urgent = yard.submit([sys.executable, "-c", "import pathlib, time\nwhile not pathlib.Path('go').exists():"
                          " time.sleep(0.02)"], name="urgent", priority=5, resources={"cpus": cpus})  # fmt: skip
    yard.wait(urgent, "running")

    waiting = yard.job(trainer)
    assert (waiting.state, waiting.reason) == ("queued", "preempted")
    assert waiting.checkpoints == 1
    first = waiting.attempts[0]
    assert (first.state, first.reason, first.exit_code) == ("ended", "preempted", 0), "a clean exit is no end"
    assert "preempted" in yard.ok("why", trainer)
    assert yard.job(patient).state == "queued", "only priority 5 preempts"

    (yard.work / "go").touch()
    yard.wait(patient, "completed")
    yard.wait(trainer, "running")
    wait_until(lambda: "resumed from" in yard.ok("logs", trainer), timeout=30)
    (yard.work / "enough").touch()
    done = yard.wait(trainer, "completed")
    assert [attempt.reason for attempt in done.attempts] == ["preempted", None]
    assert done.attempts[1].resumed_from


def test_a_job_that_is_not_preemptible_is_left_alone(yard: TestYard) -> None:
    cpus = all_cpus(yard)
    wait = "import pathlib, time\nwhile not pathlib.Path('enough').exists(): time.sleep(0.02)"
    holder = yard.submit([sys.executable, "-c", wait], name="holder", resources={"cpus": cpus})
    yard.wait(holder, "running")
    urgent = yard.submit(["true"], name="urgent", priority=5, resources={"cpus": cpus})
    assert "in use" in yard.ok("why", urgent)
    (yard.work / "enough").touch()
    yard.wait(urgent, "completed")
    assert len(yard.job(holder).attempts) == 1


def test_a_cancelled_job_is_not_queued_again_by_its_preemption(yard: TestYard) -> None:
    """The owner's wish comes before the retry that a preemption grants."""
    (yard.work / "train.py").write_text(TRAINER.replace("lambda *_: sys.exit(0)", "signal.SIG_IGN"))
    cpus = all_cpus(yard)
    trainer = yard.submit([sys.executable, "train.py"], name="stubborn", preemptible=True, resources={"cpus": cpus},
                          checkpoint={"path": "*.ckpt", "grace_s": 3})  # fmt: skip
    wait_until(lambda: "training" in yard.ok("logs", trainer), timeout=30)
    urgent = yard.submit(["true"], name="urgent", priority=5, resources={"cpus": cpus})
    wait_until(lambda: "preempt" in yard.ok("why", urgent), timeout=30)
    yard.run("cancel", trainer)
    yard.wait(trainer, "cancelled")
    yard.wait(urgent, "completed")
