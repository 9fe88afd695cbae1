"""A hard budget that is spent ends what runs, wherever that is, with a checkpoint."""

from tests.support.instance import TestInstance
from tests.support.wait import wait_until

# It saves 7 when it is asked to end; and says so when it goes on from there.
SAVES_WHEN_ASKED = """
if [ -n "$GPUYARD_RESUME_FROM" ]; then echo from $(cat $GPUYARD_RESUME_FROM); exit 0; fi
trap 'echo 7 > new; mv new step-7.txt; exit 0' TERM
echo ready
while :; do sleep 0.1; done
"""
_AT_ONCE = ("--amount", "0.000001", "--period", "total", "--hard")


def check_hard_budget(instance: TestInstance, *where: str) -> None:
    """A job that runs with these options of `gpuyard run` is asked to save, is ended
    for its budget, and goes on when the budget is gone.
    """
    words = ["--project", "poor", "--checkpoint", "step-*.txt", *where]
    program = ["--", "sh", "-c", SAVES_WHEN_ASKED]
    job = instance.ok("run", "-d", *words, *program).strip()
    wait_until(lambda: "ready" in instance.run("logs", job).stdout, what="it to run")
    instance.ok("budgets", "set", "poor", "--project", "poor", *_AT_ONCE)
    ended = instance.wait(job)
    assert (ended.state, ended.reason) == ("cancelled", "budget")
    (attempt,) = instance.json("show", job)["attempts"]
    assert attempt["reason"] == "budget"
    (saved,) = wait_until(
        lambda: instance.json("checkpoints", job)["items"], what="its checkpoint"
    )
    assert saved["path"] == "step-7.txt"
    instance.ok("budgets", "rm", "poor")
    instance.ok("resume", job, "-d")
    assert instance.wait(job).state == "completed"
    assert "from 7" in instance.ok("logs", job)
