"""The provider `slurm` on a real cluster that keeps accounts (slurmdbd on MariaDB)."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuyard.domain.ids import new_id
from gpuyard.domain.jobconfig import GpuSpec, JobConfig, JobResult, JobStatus
from gpuyard.providers.conformance import Subject
from gpuyard.providers.conformance.subject import OVER, Case
from gpuyard.providers.slurm import accounting
from gpuyard.providers.slurm.provider import SlurmProvider
from tests.support.conformance import only
from tests.support.slurmdbd import AccountedCluster
from tests.support.wait import wait_until


def make(cluster: AccountedCluster, home: Path, **more: Any) -> SlurmProvider:
    config = {
        "home": str(home),
        "poll_s": 0.2,
        "environment": cluster.environment,
        "price_per_hour": 3600,
    }
    return SlurmProvider({**config, **more})


# Slurm looks at its jobs' limits twice a minute: one that it ends for its time is for
# `make soak`.
_LATE = ("late",) if "GPUYARD_EVERY_CASE" in os.environ else ()

# How jobs end, and what they used, is asked of the accounts.
_ABOUT_ENDS = {
    "completes",
    "exit_codes",
    "killed_by_signal",
    "unknown_id",
    "status_of_a_long_job",
    "cancel_right_after_submit",
    "cancel_while_running",
    "cancel_after_the_end",
    "timeout",
    "cost",
    "health",
    "same_attempt_once",
    "lost_reply",
}


@pytest.mark.parametrize("case", only(_ABOUT_ENDS), ids=str)
def test_conformance(
    case: Case, slurm_with_accounts: AccountedCluster, tmp_path: Path
) -> None:
    @asynccontextmanager
    async def subject() -> AsyncIterator[Subject]:
        provider = make(slurm_with_accounts, tmp_path)
        yield Subject(
            provider, missing_workdir={"workdir": "/no/such/folder"}, pause_s=0.1
        )
        await provider.close()

    case.run(subject)


def job(*command: str) -> JobConfig:
    return JobConfig(
        name="job",
        command=command,
        gpu_spec=GpuSpec(gpu_count=0),
        attempt_id=new_id("attempt"),
    )


async def until(provider: SlurmProvider, job_id: str, *wanted: JobStatus) -> JobResult:
    deadline = time.monotonic() + 60
    while (result := await provider.get_job_status(job_id)).status not in wanted:
        assert time.monotonic() < deadline, result
        await asyncio.sleep(0.1)
    return result


def lose_the_end(home: Path) -> None:
    for path in (home / "slurm").glob("*/exit.json"):
        path.unlink()


@pytest.mark.timeout(240)
def test_what_slurm_forgot_and_left_no_end_is_told_by_the_accounts(
    slurm_with_accounts: AccountedCluster, tmp_path: Path
) -> None:
    cluster = slurm_with_accounts
    home = str(tmp_path)

    async def submit() -> dict[str, str]:
        plain = make(cluster, tmp_path, sbatch_options=["--exclude=node4"])
        doomed = make(
            cluster, tmp_path, sbatch_options=["--nodelist=node4", "--no-requeue"]
        )
        held = make(cluster, tmp_path, sbatch_options=["--hold"])
        broken = make(cluster, tmp_path, python="/no/such/python")
        ids = {
            what: await plain.submit_job(job("sleep", "600"))
            for what in ("taken", *_LATE)
        }
        ids["node"] = await doomed.submit_job(job("sleep", "600"))
        ids["cancelled"] = await held.submit_job(job("sleep", "600"))
        ids["code"] = await broken.submit_job(job("true"))
        ids["done"] = await plain.submit_job(job("sh", "-c", "exit 3"))
        for what in ("taken", *_LATE, "node"):
            await until(plain, ids[what], JobStatus.RUNNING)
        for what in _LATE:
            cluster.call("scontrol", "update", f"JobId={ids[what]}", "EndTime=now+1")
        assert await held.cancel_job(ids["cancelled"])
        cluster.call("scancel", ids["taken"])
        await until(plain, ids["taken"], *OVER)
        await until(plain, ids["done"], *OVER)
        try:
            cluster.call(
                "scontrol", "update", "NodeName=node4", "State=DOWN", "Reason=test"
            )
            await until(plain, ids["node"], *OVER)
        finally:
            # It may have come back by itself, and is refused then.
            cluster.call(
                "scontrol", "update", "NodeName=node4", "State=RESUME", check=False
            )
            up = {"idle", "mix", "alloc"}
            await asyncio.to_thread(
                wait_until,
                lambda: up.issuperset(cluster.state()),
                60,
                "the node to be back",
            )
        for what in _LATE:
            await until(plain, ids[what], *OVER)
        for each in (plain, doomed, held, broken):
            await each.close()
        return ids

    async def ask(ids: dict[str, str]) -> dict[str, JobResult]:
        provider = make(cluster, Path(home))
        found = await provider.poll_jobs(list(ids.values()))
        await provider.close()
        return {what: found[job_id] for what, job_id in ids.items()}

    before = time.time()
    ids = asyncio.run(submit())
    cluster.forgets(*ids.values())
    lose_the_end(tmp_path)
    found = asyncio.run(ask(ids))
    told = {
        what: (result.status, result.reason, result.exit_code)
        for what, result in found.items()
    }
    assert told == {
        "code": (JobStatus.FAILED, "exit_status_lost", 127),
        "cancelled": (JobStatus.CANCELLED, "cancelled", None),
        "taken": (JobStatus.FAILED, "preempted", None),
        **dict.fromkeys(_LATE, (JobStatus.FAILED, "timed_out", None)),
        "node": (JobStatus.FAILED, "node_lost", None),
        # Slurm knows how the runner ended, and that says nothing of the job: an exit
        # code is never guessed.
        "done": (JobStatus.UNKNOWN, "", None),
    }
    for what in told.keys() - {"done"}:
        ended_at = found[what].completed_at
        assert ended_at is not None, what
        assert before - 1 <= ended_at == cluster.ended_at(ids[what]) <= time.time(), (
            what
        )


@dataclass(frozen=True)
class Forgotten:
    """Jobs that only the accounts still know, and the home of their provider."""

    home: Path
    jobs: list[str]


@pytest.fixture(scope="module")
def forgotten(
    slurm_with_accounts: AccountedCluster, tmp_path_factory: pytest.TempPathFactory
) -> Forgotten:
    home = tmp_path_factory.mktemp("forgotten")

    async def submit() -> list[str]:
        broken = make(slurm_with_accounts, home, python="/no/such/python")
        jobs = [await broken.submit_job(job("true")) for _ in range(3)]
        await broken.close()
        return jobs

    jobs = asyncio.run(submit())
    slurm_with_accounts.forgets(*jobs)
    return Forgotten(home, jobs)


def test_a_killed_slurmdbd_holds_nothing_up_and_is_asked_again_when_it_is_back(
    slurm_with_accounts: AccountedCluster,
    forgotten: Forgotten,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accounting, "RETRY_S", 0.5)
    cluster = slurm_with_accounts

    async def check() -> None:
        provider = make(cluster, forgotten.home)
        lost = forgotten.jobs[0]
        end = tmp_path / "end"
        runs = await provider.submit_job(
            job("sh", "-c", f"while [ ! -e {end} ]; do sleep 0.1; done; exit 3")
        )
        await until(provider, runs, JobStatus.RUNNING)
        cluster.kill("slurmdbd")
        try:
            for _ in range(3):
                found = await provider.poll_jobs([lost, runs])
                assert found.keys() == {runs}, "Slurm itself has forgotten the other"
                assert found[runs].status is JobStatus.RUNNING
                await asyncio.sleep(0.6)
            health = await provider.health_check()
            assert (health["status"], health["accounting"]) == ("healthy", False)
            assert "no accounting (slurmdbd)" in health["message"]
            later = await provider.submit_job(job("sh", "-c", "exit 4"))
            assert (await until(provider, later, *OVER)).exit_code == 4
            end.touch()
            assert (await until(provider, runs, *OVER)).exit_code == 3
        finally:
            cluster.start_accounting()  # not in a thread, with whose end it would end
        deadline = time.monotonic() + 60
        while not (found := await provider.poll_jobs([lost, runs])).get(lost):
            assert time.monotonic() < deadline, "the accounts should be asked again"
            await asyncio.sleep(0.1)
        assert (found[lost].reason, found[lost].exit_code) == ("exit_status_lost", 127)
        health = await provider.health_check()
        assert (health["accounting"], health["message"]) == (
            True,
            "4 nodes can be used",
        )
        await asyncio.to_thread(
            wait_until,
            lambda: cluster.account(later) == "COMPLETED",
            60,
            "what slurmdbd missed, which Slurm keeps for it",
        )

    asyncio.run(check())


def test_a_slurmdbd_that_hangs_is_given_up(
    slurm_with_accounts: AccountedCluster,
    forgotten: Forgotten,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accounting, "RETRY_S", 600)
    (tmp_path / "sacct").write_text(
        "#!/bin/sh\necho asked >> $0.calls\nexec sleep 600\n"
    )
    (tmp_path / "sacct").chmod(0o755)
    cluster = slurm_with_accounts

    async def check() -> None:
        environment = {**cluster.environment, "PATH": f"{tmp_path}:/usr/bin:/bin"}
        lost = forgotten.jobs[1]
        provider = make(cluster, forgotten.home, environment=environment, timeout_s=3)
        runs = await provider.submit_job(job("sleep", "600"))
        await until(provider, runs, JobStatus.RUNNING)
        for _ in range(5):
            assert (await provider.poll_jobs([lost, runs])).keys() == {runs}
        assert (tmp_path / "sacct.calls").read_text() == "asked\n", (
            "one that hangs is not asked with every look"
        )
        assert await provider.cancel_job(runs)
        await until(provider, runs, *OVER)

    asyncio.run(check())


def test_a_job_that_only_the_accounts_believe_to_run_is_not_running(
    slurm_with_accounts: AccountedCluster, forgotten: Forgotten
) -> None:
    """Slurm calls it a runaway job: its end was lost on the way to slurmdbd."""
    cluster = slurm_with_accounts

    async def check() -> None:
        job_id = forgotten.jobs[2]
        cluster.execute(
            f"UPDATE accounts_job_table SET state=1, time_end=0 WHERE id_job={job_id}"
        )
        assert cluster.account(job_id) == "RUNNING"
        assert await make(cluster, forgotten.home).poll_jobs([job_id]) == {}

    asyncio.run(check())
