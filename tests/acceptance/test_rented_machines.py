"""Jobs on machines that are rented for them, from a cloud whose machines are real
processes that really join.
"""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from tests.support.rented import Rented, renting_instance
from tests.support.wait import wait_until

# Saves what it has done, and ends once it has been resumed twice.
SAVES = """\
import os, pathlib, time
resumed = os.environ.get("GPUYARD_RESUME_FROM")
done = int(pathlib.Path(resumed).read_text()) if resumed else 0
print("begins at", done, flush=True)
pathlib.Path("done.ck").write_text(str(done + 1))
if done < 2:
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def rented(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rented]:
    folder = tmp_path_factory.mktemp("cloud")
    with renting_instance(folder, GPUYARD_SCHEDULER__SPOT_ATTEMPTS="2") as made:
        (made.instance.work / "saves.py").write_text(SAVES)
        yield made


def test_a_job_runs_on_a_machine_that_is_rented_for_it_and_ends_with_it(
    rented: Rented,
):
    instance = rented.instance
    program = "echo from afar; until [ -e go ]; do sleep 0.05; done; exit 3"
    job = rented.run("--gpus", "1", "--", "sh", "-c", program)
    rented.state(job, "running")
    machine = rented.machine(job)
    assert machine["type"] == "gpu.one"
    (shown,) = instance.json("cloud", "machines")["items"]
    assert shown["job_id"] == job
    assert shown["price_per_hour"] == "1.00"
    assert Decimal(shown["cost"]) > 0
    assert machine["id"] in instance.ok("cloud", "machines")
    node = rented.nodes()[shown["node"]]
    assert node["state"] == "rented"
    assert f"rented from fakecloud for {job}" in node["reason"]
    assert instance.ok("exec", job, "--", "printenv", "CUDA_VISIBLE_DEVICES", input="")
    instance.ok("exec", job, "--", "touch", "go", input="")
    ended = rented.state(job)
    assert ended.exit_code == 3, rented.told(job)
    assert instance.ok("logs", job) == "from afar\n"
    rented.nothing_is_left()
    assert instance.ok("cloud", "machines") == "Nothing is rented.\n"


def test_an_interrupted_job_resumes_elsewhere_and_then_on_demand(rented: Rented):
    keeps = ("--checkpoint", "*.ck", "--grace", "1s")
    words = ("--spot", *keeps, "saves.py")
    job = rented.run(*words)
    zones: list[str] = []
    for take_back in (rented.cloud.announce, rented.cloud.take_back):
        machine = rented.machine(job)
        assert machine["spot"]
        zones.append(machine["zone"])
        attempt = rented.attempts(job)[-1]["id"]
        rented.until(lambda at=attempt: has_saved(rented, job, at), "it to save", job)
        take_back(machine["id"])
        rented.until(
            lambda at=attempt: rented.attempts(job)[-1]["id"] != at,
            "the next attempt",
            job,
        )
    ended = rented.state(job, "completed")
    assert sorted(zones) == ["here-1a", "here-1b"]
    assert not rented.machine(job)["spot"]
    *interrupted, last = rented.attempts(job)
    assert [one["reason"] for one in interrupted] == ["preempted", "preempted"]
    assert last["reason"] is None
    assert rented.instance.ok("logs", job) == "begins at 2\n"
    costs = [Decimal(one["cost"]["amount"]) for one in rented.attempts(job)]
    assert all(costs)
    assert ended.cost.amount == sum(costs)
    rented.nothing_is_left()


def has_saved(rented: Rented, job: str, attempt: str) -> bool:
    found: list[Any] = rented.instance.json("checkpoints", job)["items"]
    return any(one["attempt_id"] == attempt for one in found)


def test_a_zone_without_capacity_is_left_alone_and_a_lost_reply_costs_nothing(
    rented: Rented,
):
    rented.cloud.add_fault("capacity")
    rented.cloud.add_fault("reply_lost")
    job = rented.run("--", "true")
    rented.state(job, "completed")
    refused, *others = rented.attempts(job)
    assert refused["reason"] == "revoked"
    assert len(others) == 1, "a lost reply is no new attempt"
    machines = rented.cloud.rows(others[0]["id"])
    assert len(machines) == 1
    assert refused["message"] != f"capacity in {machines[0]['zone']}"
    rented.nothing_is_left()


def test_a_machine_that_never_boots_ends_with_its_job(rented: Rented):
    rented.cloud.add_fault("never_boots")
    job = rented.run("--", "true")
    machine = rented.machine(job)
    why = rented.instance.ok("why", job)
    wait_until(
        lambda: "has not joined yet" in rented.instance.ok("why", job),
        what=f"it to say what it waits for: {why}",
    )
    rented.instance.ok("cancel", job)
    rented.state(job, "cancelled")
    rented.nothing_is_left()
    assert rented.cloud.rows(machine["owner"])[0]["state"] == "gone"


def test_a_machine_without_its_gpu_is_given_back_and_says_so(rented: Rented):
    rented.cloud.add_fault("no_gpus")
    job = rented.run("--gpus", "1", "--", "true")
    ended = rented.state(job, "failed")
    assert ended.reason == "node_lost"
    attempts = rented.attempts(job)
    assert len(attempts) == 1, rented.told(job)
    (attempt,) = attempts
    assert "it shows 0 GPUs, and not 1" in attempt["message"]
    rented.nothing_is_left()


# Kills at the other moments are in `make soak` (tests/soak/rented.py).
@pytest.mark.parametrize("moment", ["kill_after_launch", "kill_before_end"])
def test_a_killed_server_leaves_one_machine_for_each_attempt_and_then_none(
    rented: Rented, moment: str
):
    rented.survive(moment)
