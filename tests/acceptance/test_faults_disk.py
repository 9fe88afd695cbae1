"""Disks that lie or lose: a sync that fails, a log that was torn by a crash."""

import errno
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.client.sync import Client
from gpuyard.domain.errors import GpuyardError
from tests.support.faults import Faults
from tests.support.instance import TestInstance, make_instance
from tests.support.wait import wait_until


@pytest.fixture
def faults(tmp_path: Path) -> Faults:
    return Faults(tmp_path)


@pytest.fixture
def faulty(faults: Faults) -> Iterator[TestInstance]:
    with make_instance(**faults.environment) as instance:
        yield instance


def submit(instance: TestInstance, key: str) -> str:
    """A job of this key, asked for once."""
    with Client(instance.address()) as client:
        return client.run(
            {"command": ["true"], "workdir": str(instance.work), "idempotency_key": key}
        ).id


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_sync_that_fails_acknowledges_nothing_and_loses_nothing(
    faults: Faults, faulty: TestInstance, code: int
) -> None:
    faulty.ok("up")
    before = submit(faulty, "before")
    faulty.wait(before)
    faults.syncs_fail(code)
    with pytest.raises(GpuyardError, match=r"cannot be (written|used)"):
        submit(faulty, "meanwhile")
    assert faulty.job(before).state == "completed"
    faults.syncs_fail(0)
    # Whether the failed one came to be is for its key to find out: asked again, there
    # is one of it.
    first = wait_until(
        lambda: _submitted(faulty, "meanwhile"), 20, "the ledger to take jobs again"
    )
    assert submit(faulty, "meanwhile") == first
    assert faulty.wait(first).state == "completed"
    faulty.kill("server")
    assert faulty.wait(before).state == "completed"
    assert len(faulty.json("jobs", "-n", "100")["items"]) == 2


def test_a_server_that_could_not_stop_goes_on_starting_jobs(
    faults: Faults, faulty: TestInstance
) -> None:
    faulty.ok("up")
    running = faulty.submit(["sleep", "300"])
    faulty.wait(running, "running")
    faults.syncs_fail(errno.ENOSPC)
    assert faulty.run("down", "--running", "cancel").returncode != 0
    faults.syncs_fail(0)
    later = wait_until(lambda: _submitted(faulty, "later"), 20, "the ledger to write")
    assert faulty.wait(later).state == "completed"


def _submitted(instance: TestInstance, key: str) -> str | None:
    try:
        return submit(instance, key)
    except GpuyardError:
        return None


def test_a_torn_write_ahead_log_keeps_what_was_acknowledged(
    instance: TestInstance,
) -> None:
    """A crash of the machine leaves half a commit at the end of the log: it never was,
    and all before it is.
    """
    instance.ok("up")
    jobs = [submit(instance, f"key-{n}") for n in range(5)]
    instance.kill("server")
    log = next(instance.home.root.glob("ledger.db-wal"))
    whole = log.read_bytes()
    frame = 24 + int.from_bytes(whole[8:12], "big")
    torn = bytearray(whole[-frame:])
    torn[100:200] = random.Random(1).randbytes(100)
    with log.open("ab") as file:
        file.write(bytes(torn[: frame // 2]))
    for job_id in jobs:
        assert instance.wait(job_id).state == "completed"
    assert {item["id"] for item in instance.json("jobs", "-n", "100")["items"]} == set(
        jobs
    )
