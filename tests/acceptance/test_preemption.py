"""A job of priority 5 takes the place of a preemptible one, which saves its work,
waits, and goes on where it was.
"""

import subprocess
import sys

from tests.support.instance import TestInstance
from tests.support.wait import wait_until

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


def all_cpus(instance: TestInstance) -> float:
    """The cores of the one node: a job with these has it to itself."""
    instance.ok("up")
    node = wait_until(lambda: next(iter(instance.json("nodes")["items"]), None))
    return node["cpus"]


def test_an_urgent_job_preempts_a_trainer_which_resumes(instance: TestInstance) -> None:
    (instance.work / "train.py").write_text(TRAINER)
    cpus = all_cpus(instance)
    saves = ("--checkpoint", "*.ckpt", "--checkpoint-signal", "USR1", "--grace", "20")
    takes_all = ("--preemptible", "--cpus", str(cpus))
    trainer = instance.ok(
        *("run", "--detach", *takes_all, *saves, "--", sys.executable, "train.py")
    ).strip()
    wait_until(lambda: "training" in instance.ok("logs", trainer))

    patient = instance.submit(
        ["true"], name="patient", priority=4, resources={"cpus": cpus}
    )
    urgent = instance.submit(
        [
            sys.executable,
            "-c",
            (
                "import pathlib, time\nwhile not pathlib.Path('go').exists():"
                " time.sleep(0.02)"
            ),
        ],
        name="urgent",
        priority=5,
        resources={"cpus": cpus},
    )
    instance.wait(urgent, "running")

    waiting = instance.job(trainer)
    assert (waiting.state, waiting.reason) == ("queued", "preempted")
    assert waiting.checkpoints == 1
    first = waiting.attempts[0]
    assert (first.state, first.reason, first.exit_code) == (
        "ended",
        "preempted",
        0,
    ), "a clean exit is no end"
    assert "preempted" in instance.ok("why", trainer)
    assert instance.job(patient).state == "queued", "only priority 5 preempts"

    (instance.work / "go").touch()
    instance.wait(patient, "completed")
    instance.wait(trainer, "running")
    wait_until(lambda: "resumed from" in instance.ok("logs", trainer))
    (instance.work / "enough").touch()
    done = instance.wait(trainer, "completed")
    assert [attempt.reason for attempt in done.attempts] == ["preempted", None]
    assert done.attempts[1].resumed_from


def test_who_attaches_to_a_job_that_is_being_preempted_types_to_its_next_attempt(
    instance: TestInstance,
) -> None:
    cpus = all_cpus(instance)
    until_stopped = (
        "import pathlib, signal, sys, time\n"
        "def leave(*_):\n"
        "    print('leaving', flush=True)\n"
        "    while not pathlib.Path('leave').exists(): time.sleep(0.02)\n"
        "    pathlib.Path('again').touch(); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "print('ready', flush=True)\n"
        "if pathlib.Path('again').exists(): print('got', input()); sys.exit(0)\n"
        "while True: time.sleep(0.02)"
    )
    asked = instance.submit(
        [sys.executable, "-c", until_stopped],
        interactive=True,
        preemptible=True,
        resources={"cpus": cpus},
        checkpoint={"grace_s": 60},
    )
    wait_until(lambda: "ready" in instance.ok("logs", asked))
    instance.submit(["true"], priority=5, resources={"cpus": cpus})
    wait_until(lambda: "leaving" in instance.ok("logs", asked))
    attached = instance.popen("attach", asked, stdin=subprocess.PIPE)
    assert attached.stderr
    refusal = attached.stderr.readline()
    assert "is being ended" in refusal
    (instance.work / "leave").touch()
    out, _ = attached.communicate("typed\n", timeout=60)
    assert "got typed" in out


def test_a_job_that_is_not_preemptible_is_left_alone(instance: TestInstance) -> None:
    cpus = all_cpus(instance)
    wait = (
        "import pathlib, time\nwhile not pathlib.Path('enough').exists():"
        " time.sleep(0.02)"
    )
    holder = instance.submit(
        [sys.executable, "-c", wait], name="holder", resources={"cpus": cpus}
    )
    instance.wait(holder, "running")
    urgent = instance.submit(
        ["true"], name="urgent", priority=5, resources={"cpus": cpus}
    )
    assert "in use" in instance.ok("why", urgent)
    (instance.work / "enough").touch()
    instance.wait(urgent, "completed")
    assert len(instance.job(holder).attempts) == 1


def test_a_cancelled_job_is_not_queued_again_by_its_preemption(
    instance: TestInstance,
) -> None:
    """The owner's wish comes before the retry that a preemption grants."""
    (instance.work / "train.py").write_text(
        TRAINER.replace("lambda *_: sys.exit(0)", "signal.SIG_IGN")
    )
    cpus = all_cpus(instance)
    trainer = instance.submit(
        [sys.executable, "train.py"],
        name="stubborn",
        preemptible=True,
        resources={"cpus": cpus},
        checkpoint={"path": "*.ckpt", "grace_s": 3},
    )
    wait_until(lambda: "training" in instance.ok("logs", trainer))
    urgent = instance.submit(
        ["true"], name="urgent", priority=5, resources={"cpus": cpus}
    )
    wait_until(lambda: "preempt" in instance.ok("why", urgent))
    instance.run("cancel", trainer)
    instance.wait(trainer, "cancelled")
    instance.wait(urgent, "completed")
