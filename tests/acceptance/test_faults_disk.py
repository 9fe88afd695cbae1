"""Disks that lie, lose or fill: a sync that fails, a log that was torn by a crash, a
job that writes until nothing is free.
"""

import errno
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.client.sync import Client
from gpuyard.domain.errors import GpuyardError
from tests.support.faults import Faults
from tests.support.instance import TestInstance, make_instance
from tests.support.tmpfs import fill, small_disk
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
        lambda: _submitted(faulty, "meanwhile"), what="the ledger to take jobs again"
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
    later = wait_until(lambda: _submitted(faulty, "later"), what="the ledger to write")
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


# Fills the disk of the home with its output: to 93 %, and from a word on for ever.
_FILLER = """
import os, pathlib, sys, time
home = sys.argv[1]
def share():
    disk = os.statvfs(home)
    return 1 - disk.f_bavail / disk.f_blocks
while share() < 0.93:
    os.write(1, b"x" * 65535 + b"\\n")
while not pathlib.Path("go").exists():
    time.sleep(0.02)
while True:
    try:
        os.write(1, b"x" * 4095 + b"\\n")
    except OSError:
        time.sleep(0.02)
"""


@pytest.fixture
def small() -> Iterator[TestInstance]:
    """An instance whose home is on a disk of 48 MB, with a reserve of 8 MB."""
    settings = {"RESERVE_MB": "8", "LOOK_S": "0.2"}
    variables = {f"GPUYARD_DISK__{name}": value for name, value in settings.items()}
    with (
        make_instance(**variables) as instance,
        small_disk(instance.home.root, "48m"),
    ):
        yield instance
        instance.close()


def test_a_job_that_fills_the_disk_is_named_before_and_cancelled_after(
    small: TestInstance,
) -> None:
    small.ok("up")
    reserve = small.home.reserve
    wait_until(reserve.exists, what="the reserve")
    room = {"cpus": 0.1}
    sleeper = small.submit(["sleep", "300"], resources=room)
    last = small.submit(["sleep", "300"], resources=room)
    filler = small.submit(
        ["python3", "-c", _FILLER, str(small.home.root)],
        name="filler",
        resources=room,
    )
    wait_until(lambda: small.job(filler).warnings, what="the job to be named")
    events = small.json("events", "-n", "1000")["items"]
    (named,) = [event for event in events if event["kind"] == "disk.filling"]
    assert named["job_id"] == filler
    assert "full" in small.ok("show", filler)
    checkup = small.run("doctor", "--json").stdout
    assert f"job filler ({filler}) takes most" in checkup
    assert f"job filler ({filler}) takes most" in small.ok("gpus")

    (small.work / "go").touch()
    refusal = wait_until(lambda: _refusal(small), what="new jobs to be refused")
    assert f"gpuyard cancel {filler}" in refusal
    small.ok("cancel", filler)
    assert small.wait(filler).state == "cancelled"

    # Nothing is free, and no server runs: the next one starts all the same.
    small.kill("server")
    fill(small.home.root / "ballast")
    small.ok("cancel", sleeper)
    assert small.wait(sleeper).state == "cancelled"
    small.ok("down", "--running", "cancel")

    (small.home.root / "ballast").unlink()
    for log in (small.home.node / "attempts").glob("*.log"):
        log.unlink()
    small.ok("up")
    later = wait_until(lambda: _submitted(small, "later"), what="room for a job")
    assert small.wait(later).state == "completed"
    for job_id in (filler, sleeper, last):
        assert small.job(job_id).state == "cancelled"
    small.ok("ledger", "check")


def _refusal(instance: TestInstance) -> str | None:
    """Why a new job is not taken; None if it is."""
    done = instance.run("run", "-d", "--", "true")
    return done.stderr if done.returncode == 4 else None
