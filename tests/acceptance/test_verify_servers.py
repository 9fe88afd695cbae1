"""Verification by several at once, and by some that are killed: no sample is used
twice, no check is scored twice.

`GPUYARD_VERIFY_KILL_ROUNDS` sets how often: 4 times in `make test`, more in a soak.
"""

import json
import os
import random
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gpuyard.verification.trust import record_after
from tests.support.instance import TestInstance, gpuyard, make_instance
from tests.support.postgres import PostgresServer
from tests.support.verifying import configure, executor, outcomes, section, verify
from tests.support.wait import wait_until

ROUNDS = int(os.environ.get("GPUYARD_VERIFY_KILL_ROUNDS", "4"))
NAMES = ("stream12", "stdin12", "stream6", "stdin6")
TRUSTED = (
    executor("trusted12", "practice-12", trusted=True),
    executor("trusted6", "practice-6", trusted=True),
)
EXECUTORS = (
    *TRUSTED,
    executor("stream12", "practice-12"),
    executor("stdin12", "practice-12", stream=False),
    executor("stream6", "practice-6"),
    executor("stdin6", "practice-6", stream=False),
)
Rows = Callable[[str], list[dict[str, Any]]]


def check_samples(rows: Rows) -> list[dict[str, Any]]:
    """Each check has a sample of its own, each workload served one batch; the
    checks.
    """
    checks = rows(
        "select id, batch_id, sample_id, executor, gpu_class, outcome, scored, state"
        " from checks"
    )
    samples = rows(
        "select id, workload_id, check_id from samples where check_id is not null"
    )
    assert len({check["sample_id"] for check in checks}) == len(checks)
    given = {sample["check_id"]: sample for sample in samples}
    assert len(given) == len(samples)
    assert all(
        given[check["id"]]["id"] == check["sample_id"]
        for check in checks
        if check["id"] in given
    )
    batches = {
        (given[check["id"]]["workload_id"], check["batch_id"]) for check in checks
    }
    assert max(Counter(workload for workload, _ in batches).values()) == 1, (
        "a seed that was out was used again"
    )
    return checks


def test_two_servers_that_verify_at_once_use_no_sample_twice(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.create()
    shared = section("verification", blobs=str(tmp_path / "blobs"))
    with (
        make_instance(GPUYARD_VERIFICATION__DATABASE=url) as first,
        make_instance(GPUYARD_VERIFICATION__DATABASE=url) as second,
    ):
        for instance in (first, second):
            configure(instance, shared, *EXECUTORS)
            instance.ok("up")
        both = [
            instance.popen("verify", "run", *NAMES, "--json")
            for instance in (first, second)
        ]
        for one in both:
            said, errors = one.communicate(timeout=100)
            assert one.returncode == 0, (said, errors)
            items = json.loads(said)["items"]
            assert Counter(item["outcome"] for item in items) == {"passed": 4}, items

    def rows(statement: str) -> list[dict[str, Any]]:
        return look(postgres, url, statement)

    checks = check_samples(rows)
    assert len(checks) == 2 * len(NAMES)
    assert trust_of(rows) == expected_trust(checks)


def look(postgres: PostgresServer, url: str, statement: str) -> list[dict[str, Any]]:
    """Rows of the schema `verification`."""
    name = url.rsplit("/", 1)[1]
    inner = statement.replace(" from ", " from verification.")
    return [
        row[0]
        for row in postgres.execute(f"select row_to_json(t) from ({inner}) t", name)
    ]


def trust_of(rows: Rows) -> dict[str, tuple[float, float, int]]:
    """Executor → (alpha, beta, repeats), by the database."""
    found = rows("select name, alpha, beta, repeats from executors")
    return {
        one["name"]: (round(one["alpha"], 2), round(one["beta"], 2), one["repeats"])
        for one in found
    }


def expected_trust(checks: list[dict[str, Any]]) -> dict[str, tuple[float, float, int]]:
    """The same, as the scored checks say: each counts once."""
    records: dict[str, Any] = {}
    history: dict[str, list[str]] = {}
    for check in checks:
        if check["scored"]:
            mine = history.setdefault(check["executor"], [])
            mine.insert(0, check["outcome"])
            records[check["executor"]] = record_after(
                records.get(check["executor"]), check, mine
            )
    return {
        name: (round(one.alpha, 2), round(one.beta, 2), one.repeats)
        for name, one in records.items()
    }


@pytest.fixture
def instance() -> Iterator[TestInstance]:
    with make_instance() as made:
        # Making more samples would keep the trusted executors busy.
        few = section("verification", lease_s=1, max_series=24, target=36)
        configure(made, few, *EXECUTORS)
        made.ok("up")
        yield made


def own_rows(instance: TestInstance) -> Rows:
    """Rows of the instance's own database."""

    def rows(statement: str) -> list[dict[str, Any]]:
        with closing(
            sqlite3.connect(instance.home.verification / "verification.db")
        ) as database:
            database.row_factory = sqlite3.Row
            return [dict(row) for row in database.execute(statement)]

    return rows


SLOW = (
    section("verification", lease_s=1),
    executor(
        "trusted", "practice-6", trusted=True, engine={"options": {"delay_s": 600}}
    ),
    executor("rented", "practice-6"),
)


def trusted_jobs(instance: TestInstance, state: str) -> list[str]:
    """The jobs of the trusted executor in this state."""
    jobs = instance.json("jobs", "--limit", "1000")["items"]
    mine = [job for job in jobs if job["labels"]["verification"].startswith("trusted_")]
    return [job["id"] for job in mine if job["state"] == state]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_trusted_executor_has_one_task_at_a_time_whatever_ends_a_run(
    how: signal.Signals,
) -> None:
    """Asked nicely a run ends its own job; killed, it leaves that to the next one."""
    with make_instance() as instance:
        configure(instance, *SLOW)
        instance.ok("up")
        first = instance.popen("verify", "run", "rented", "--json")
        wait_until(lambda: trusted_jobs(instance, "running"), what="a trusted job")
        (left,) = trusted_jobs(instance, "running")
        first.send_signal(how)
        said, errors = first.communicate(timeout=60)
        if how is signal.SIGTERM:
            assert (first.returncode, said) == (143, ""), (first.returncode, errors)
            assert trusted_jobs(instance, "cancelled") == [left], errors
            return
        second = instance.popen("verify", "run", "rented", "--json")

        def next_one() -> bool:
            live = trusted_jobs(instance, "running")
            assert len(live) <= 1, live
            return live not in ([], [left])

        wait_until(next_one, what="the next job of the trusted executor")
        assert trusted_jobs(instance, "cancelled") == [left]
        second.terminate()
        second.communicate(timeout=60)


@pytest.mark.slow
@pytest.mark.timeout(60 + 30 * ROUNDS)
def test_a_run_that_is_killed_leaves_nothing_behind(instance: TestInstance) -> None:
    """`kill -9` at random moments, from its start to its end."""
    dice = random.Random(20261123)
    for _ in range(ROUNDS):
        running = instance.popen("verify", "run", *NAMES, "--json")
        try:
            running.wait(dice.uniform(0.2, 2.5))
        except subprocess.TimeoutExpired:
            running.kill()
        running.communicate()
    rows = own_rows(instance)
    held = "select until from leases"
    wait_until(
        lambda: all(one["until"] < time.time() for one in rows(held)),
        what="the killed ones' locks to be free",
    )
    found = verify(instance, *NAMES)
    assert outcomes(found) == dict.fromkeys(NAMES, "passed"), found
    checks = check_samples(rows)
    assert {check["scored"] for check in checks if check["state"] == "over"} == {1}
    assert {check["outcome"] for check in checks if check["scored"]} <= {
        "passed",
        "blameless",
    }, "nobody cheated"
    assert trust_of(rows) == expected_trust(checks)
    assert {batch["outcome"] for batch in rows("select outcome from batches")} <= {
        "done",
        "abandoned",
    }
    wait_until(
        lambda: not live_jobs(instance),
        what="the killed ones' jobs to end by themselves",
    )


def live_jobs(instance: TestInstance) -> list[str]:
    """Jobs that are not over."""
    over = ("completed", "failed", "cancelled", "timed_out")
    return [
        job["id"]
        for job in instance.json("jobs", "--limit", "1000")["items"]
        if job["state"] not in over
    ]


def test_a_watch_verifies_again_and_again_until_it_is_interrupted(
    instance: TestInstance,
) -> None:
    """It makes samples meanwhile. What it outlasts is shown in test_verify_outages.py."""
    rows = own_rows(instance)
    log = instance.work / "watch.log"
    words = [*gpuyard(), "verify", "watch", *NAMES, "--every", "1s"]
    with log.open("w") as file:
        watching = subprocess.Popen(
            words, env=instance.environment, cwd=instance.work, stdout=file, stderr=file
        )
    try:
        wait_until(lambda: log.read_text().count("EXECUTOR") >= 2, 100, "two batches")
        assert "failed" not in log.read_text()
        unused = rows("select id from samples where check_id is null")
        assert len(unused) > 12, "the pipelines make more than one batch needs"
        watching.send_signal(signal.SIGINT)
        assert watching.wait(30) in (0, 130)
    finally:
        watching.kill()
        watching.wait()
    assert "Traceback" not in log.read_text()
    wait_until(lambda: not live_jobs(instance), what="its jobs to end")
