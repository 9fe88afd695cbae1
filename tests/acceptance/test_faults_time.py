"""Clocks that jump, answers that are lost, cancels that race the end, output without
end.
"""

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.client.bodies import at_home_here
from tests.support.faults import Faults
from tests.support.instance import TestInstance, make_instance
from tests.support.wait import wait_until


@pytest.fixture
def faults(tmp_path: Path) -> Faults:
    return Faults(tmp_path)


@pytest.fixture
def jumpy(faults: Faults) -> Iterator[TestInstance]:
    with make_instance(
        GPUYARD_SCHEDULER__RETRY_BASE_S="3",
        GPUYARD_SCHEDULER__RETRY_MAX_S="3",
        **faults.environment,
    ) as instance:
        yield instance


# Fails the first time it runs.
ONCE = 'test -e "$1" && exit 0; : >"$1"; exit 1'


def test_a_clock_that_jumps_an_hour_stops_nothing(
    faults: Faults, jumpy: TestInstance
) -> None:
    """A retry that waits, a job that runs and one that has a time limit: none notices
    that the wall clock was set, forward or back.
    """
    for jump_s in (3600, -3600):
        ran = jumpy.work / f"ran{jump_s}"
        retried = jumpy.submit(["sh", "-c", ONCE, "sh", str(ran)], retry_count=1)
        running = jumpy.submit(["sleep", "4"], timeout_s=600)
        jumpy.wait(running, "running")
        wait_until(
            lambda retried=retried: jumpy.job(retried).attempts[0].state == "ended",
            what="the first try to fail",
        )
        faults.clock_is_off(jump_s)
        after = jumpy.submit(["true"])
        for job_id in (after, retried, running):
            done = jumpy.wait(job_id)
            assert (done.state, done.cost.amount >= 0) == ("completed", True), jump_s
        assert len(jumpy.job(running).attempts) == 1
        assert len(jumpy.job(retried).attempts) == 2
        faults.clock_is_off(0)


UNTIL_TOLD = 'while ! test -e "$1"; do sleep 0.05; done'


@pytest.mark.parametrize("jump_s", [7200, -7200])
def test_a_clock_that_jumps_changes_neither_duration_nor_cost(
    faults: Faults, jumpy: TestInstance, jump_s: float
) -> None:
    """While a job runs, the wall clock is set by two hours, server and agent are
    killed, and the clock is set right. What the job took and cost is what it ran.
    """
    began = time.monotonic()
    go = jumpy.work / "go"
    job_id = jumpy.submit(["sh", "-c", UNTIL_TOLD, "sh", str(go)])
    jumpy.wait(job_id, "running")
    before = jumpy.job(job_id)
    faults.clock_is_off(jump_s)
    check_price(jumpy, job_id, began)
    jumpy.kill("server")
    jumpy.kill("agent")
    wait_until(
        lambda: before.attempts[0].ran_s < jumpy.job(job_id).attempts[0].ran_s < 3600,
        what="the node to say how long the job has run",
    )
    check_price(jumpy, job_id, began)
    faults.clock_is_off(0)
    go.touch()
    assert jumpy.wait(job_id).state == "completed"
    check_price(jumpy, job_id, began)


def check_price(instance: TestInstance, job_id: str, began: float) -> None:
    """The job has run since `began` (monotonic seconds) at most, and costs that."""
    job = instance.job(job_id)
    (attempt,) = job.attempts
    assert 0 < attempt.ran_s <= time.monotonic() - began
    assert float(job.cost.amount) == pytest.approx(
        float(job.cost.price_per_hour) * attempt.ran_s / 3600, abs=1e-5
    )


def test_a_reply_that_was_lost_is_given_again(instance: TestInstance) -> None:
    instance.ok("up")
    address = instance.address()
    host, port = address.url.removeprefix("http://").rstrip("/").split(":")
    body = json.dumps(
        at_home_here(
            {
                "command": ["true"],
                "workdir": str(instance.work),
                "idempotency_key": "once",
            }
        )
    ).encode()
    head = (
        f"POST /api/v1/jobs HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer"
        f" {address.token}\r\nContent-Type: application/json\r\nContent-Length:"
        f" {len(body)}\r\n\r\n"
    ).encode()
    for _ in range(3):  # each hangs up without having read the answer
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(head + body)
    told = instance.submit(["true"], idempotency_key="once")
    assert [item["id"] for item in instance.json("jobs", "-n", "100")["items"]] == [
        told
    ]
    assert len(instance.wait(told).attempts) == 1


def test_a_cancel_that_races_the_end_is_decided_once(instance: TestInstance) -> None:
    """Whoever comes first wins; the job says the same for ever after, and it is what
    its program did.
    """
    script = instance.work / "race.sh"
    script.write_text('sleep 0.$2; echo done >"$1"\n')
    jobs: dict[str, Path] = {}
    with instance.client() as client:
        for number in range(16):
            mark = instance.work / f"mark{number}"
            command = ["sh", str(script), str(mark), f"{number % 4}"]
            jobs[client.run({"command": command, "workdir": str(instance.work)}).id] = (
                mark
            )
        for job_id in jobs:
            client.job(job_id).cancel()
    states = {job_id: instance.wait(job_id).state for job_id in jobs}
    assert set(states.values()) <= {"completed", "cancelled"}
    for job_id, state in states.items():
        assert state == "cancelled" or jobs[job_id].exists()
    instance.kill("server")
    assert {job_id: instance.wait(job_id).state for job_id in jobs} == states
    (node,) = instance.json("nodes")["items"]
    assert node["booked"]["cpus"] == 0


def test_a_line_of_100_megabytes_is_kept_and_fills_nobodys_memory(
    instance: TestInstance,
) -> None:
    job_id = instance.submit(
        ["sh", "-c", "head -c 100000000 /dev/zero | tr '\\0' x; echo; echo after"]
    )
    before = most_memory_mb(instance)
    assert instance.wait(job_id, timeout=110).state == "completed"
    assert instance.ok("logs", job_id, "-n", "1").strip() == "after"
    grown = {name: now - before[name] for name, now in most_memory_mb(instance).items()}
    assert grown.keys() == {"server", "agent"}
    assert max(grown.values()) < 64, grown


def most_memory_mb(instance: TestInstance) -> dict[str, float]:
    """The most that each has had at any time: what was freed since counts, too."""
    return {
        name: float(re.findall(r"VmHWM:\s+(\d+) kB", status.read_text())[0]) / 1e3
        for name in ("server", "agent")
        if (status := Path(f"/proc/{instance.pid(name)}/status"))
    }
