"""`kill -9` of server, agent, keeper and all of them: running jobs go on or are
requeued, every job ends exactly once.

`GPUYARD_KILL_ROUNDS` sets the length: 12 rounds in `make test`, more in a soak.
"""

import os
import random
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.support.forkserver import REAL_AGENT
from tests.support.instance import TestInstance, make_instance
from tests.support.wait import wait_until

ROUNDS = int(os.environ.get("GPUYARD_KILL_ROUNDS", "12"))
# Writes a line when it starts and one when it ends: a job that ran twice at once, or
# twice to its end, shows.
WITNESS = """
import os, sys, time
mark, seconds, code = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
with open(mark, "a") as file: file.write(f"began {os.environ['GPUYARD_ATTEMPT']}\\n")
time.sleep(seconds)
with open(mark, "a") as file: file.write(f"ended {os.environ['GPUYARD_ATTEMPT']}\\n")
sys.exit(code)
"""


@pytest.fixture
def instance() -> Iterator[TestInstance]:
    with make_instance(**{REAL_AGENT: "1"}) as made:
        yield made


def submit_witness(
    instance: TestInstance, name: str, seconds: float, code: int = 0, **fields: object
) -> str:
    script = instance.work / "witness.py"
    if not script.exists():
        script.write_text(WITNESS)
    command = [
        "python3",
        str(script),
        str(instance.work / f"{name}.mark"),
        str(seconds),
        str(code),
    ]
    return instance.submit(command, name=name, **fields)


def marks(instance: TestInstance, name: str) -> list[str]:
    path = instance.work / f"{name}.mark"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(
    "victims",
    [("server",), ("agent",), ("keeper",), ("server", "agent"), ("server", "keeper")],
)
def test_a_running_job_goes_on_and_waiting_ones_follow(
    instance: TestInstance, victims: tuple[str, ...]
) -> None:
    running = submit_witness(instance, "running", 3, code=5)
    waiting = [
        submit_witness(instance, f"waiting{n}", 0.1, resources={"cpus": 2})
        for n in range(3)
    ]
    instance.wait(running, "running")
    instance.kill(*victims)
    assert instance.wait(running).exit_code == 5
    assert marks(instance, "running") == ["began 1", "ended 1"]
    for number, job_id in enumerate(waiting):
        assert instance.wait(job_id).state == "completed"
        assert marks(instance, f"waiting{number}") == ["began 1", "ended 1"]


@pytest.mark.parametrize("retries", [0, 1])
def test_with_everything_killed_the_exit_status_is_lost_and_the_retry_policy_decides(
    instance: TestInstance, retries: int
) -> None:
    running = submit_witness(instance, "running", 2, retry_count=retries)
    waiting = submit_witness(instance, "waiting", 0.1, resources={"cpus": 2})
    instance.wait(running, "running")
    instance.kill("keeper", "server", "agent")
    done = instance.wait(running)
    assert done.attempts[0].reason == "exit_status_lost"
    assert (done.state, len(done.attempts)) == (
        ("failed", 1) if not retries else ("completed", 2)
    )
    # The first attempt was left to end by itself before a second one began.
    expected = ["began 1", "ended 1"] + ["began 2", "ended 2"] * retries
    assert marks(instance, "running") == expected
    assert instance.wait(waiting).state == "completed"


def test_a_cancel_survives_the_crash_that_follows_it(instance: TestInstance) -> None:
    job_id = submit_witness(instance, "cancelled", 60)
    instance.wait(job_id, "running")
    instance.kill("agent")
    with instance.client() as client:
        client.job(job_id).cancel()
    instance.kill("server")
    done = instance.wait(job_id)
    assert done.state == "cancelled"
    assert marks(instance, "cancelled") == ["began 1"]


@pytest.mark.parametrize("keeper_dies", [False, True])
def test_rounds_of_random_kills_lose_no_job_and_run_none_twice(
    instance: TestInstance, keeper_dies: bool
) -> None:
    """Random victims at random moments while jobs are submitted; at the end every
    promise is checked.

    As long as the keeper lives, no exit status is lost and each job needs one attempt.
    Once keeper and then agent were killed within one job's life nobody saw how it
    ended: then, and only then, the retry policy starts another.
    """
    dice = random.Random(20261121)
    choices = [
        ("server",),
        ("agent",),
        ("server", "agent"),
        *([("keeper",), ("server", "keeper")] * keeper_dies),
    ]
    jobs: dict[str, str] = {}
    for number in range(ROUNDS // 2):
        name = f"job{number}"
        # An unacknowledged submission may or may not have been taken.
        with suppress(Exception):
            seconds = dice.choice([0.0, 0.1, 0.5])
            jobs[name] = submit_witness(
                instance, name, seconds, idempotency_key=name, retry_count=10
            )
        wait_until(lambda: instance.pid("agent"), what="an agent to live")
        instance.kill(*dice.choice(choices))
    for name, job_id in jobs.items():
        done = instance.wait(job_id, timeout=120)
        reasons = [attempt.reason for attempt in done.attempts]
        assert done.state == "completed", (name, reasons)
        assert reasons == ["exit_status_lost"] * (len(reasons) - 1) + [None], name
        assert keeper_dies or len(reasons) == 1, (name, reasons)
        check_no_overlap(marks(instance, name))
    assert len(jobs) >= ROUNDS // 4


def check_no_overlap(lines: list[str]) -> None:
    """No attempt wrote anything after the next one had begun, and the last one
    ended.
    """
    numbers = [int(line.split()[1]) for line in lines]
    assert numbers == sorted(numbers), lines
    assert lines[-1] == f"ended {numbers[-1]}", lines
    assert len(lines) == len(set(lines)), lines


def test_no_gpu_or_core_stays_booked_after_the_storm(instance: TestInstance) -> None:
    submit_witness(instance, "first", 0.5)
    wait_until(lambda: instance.pid("agent"), what="an agent to live")
    instance.kill("server", "agent")
    after = submit_witness(instance, "after", 0, resources={"cpus": 2})
    assert instance.wait(after).state == "completed"
    (node,) = instance.json("nodes")["items"]
    assert node["booked"] == {"cpus": 0, "memory_gb": 0, "gpus": 0}
