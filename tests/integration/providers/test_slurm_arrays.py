"""Jobs that come together go to Slurm as arrays: few calls, and each job is a job of
its own all the same.
"""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from gpuyard.domain.errors import ProviderError
from gpuyard.domain.ids import new_id
from gpuyard.domain.jobconfig import GpuSpec, JobConfig, JobResult, JobStatus
from gpuyard.providers.conformance.subject import OVER
from gpuyard.providers.slurm.provider import SlurmProvider
from tests.support.slurm import SlurmCluster
from tests.support.slurmrestd import RestCluster
from tests.support.sshd import Sshd


def make(cluster: SlurmCluster, home: Path, **more: Any) -> SlurmProvider:
    return SlurmProvider(
        {"home": str(home), "environment": cluster.environment, **more}
    )


def wrapped(cluster: SlurmCluster, home: Path, instead: str) -> dict[str, str]:
    """An `sbatch` that notes each call and does `instead`, in which it may `exec` the
    real one, for an array.
    """
    home.mkdir(exist_ok=True)
    (home / "sbatch").write_text(
        f'#!/bin/sh\necho "$@" >> {home}/calls\ncase "$*" in *--array=*) {instead} ;;'
        ' esac\nexec /usr/bin/sbatch "$@"\n'
    )
    (home / "sbatch").chmod(0o755)
    return {**cluster.environment, "PATH": f"{home}:{os.environ['PATH']}"}


def job(script: str) -> JobConfig:
    config = JobConfig(
        name="job",
        command=("sh", "-c", script),
        attempt_id=new_id("attempt"),
        grace_s=1,
    )
    return config.model_copy(update={"gpu_spec": GpuSpec(gpu_count=0)})


async def until(provider: SlurmProvider, job_id: str, *wanted: JobStatus) -> JobResult:
    deadline = time.monotonic() + 90
    while (result := await provider.get_job_status(job_id)).status not in wanted:
        assert time.monotonic() < deadline, result
        await asyncio.sleep(0.1)
    return result


async def together(provider: SlurmProvider, *configs: JobConfig) -> list[str]:
    return list(await asyncio.gather(*map(provider.submit_job, configs)))


def test_twenty_jobs_are_few_calls_and_one_is_cancelled_alone(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    environment = wrapped(slurm, tmp_path / "bin", "")
    scripts = [
        f"echo number {number} ${{SLURM_ARRAY_TASK_ID:-alone}}; exit {number % 5}"
        for number in range(20)
    ]
    scripts[3] = "echo stays; sleep 600"

    async def check() -> None:
        provider = make(slurm, tmp_path, environment=environment, max_pending=20)
        jobs = await together(provider, *map(job, scripts))
        calls = (tmp_path / "bin" / "calls").read_text().splitlines()
        assert len(calls) <= 4
        assert len(set(jobs)) == 20
        await until(provider, jobs[3], JobStatus.RUNNING)
        assert await provider.cancel_job(jobs[3])
        results = await asyncio.gather(
            *(until(provider, job_id, *OVER) for job_id in jobs)
        )
        assert results.pop(3).status is JobStatus.CANCELLED
        assert [result.exit_code for result in results] == [
            n % 5 for n in range(20) if n != 3
        ]
        logs = await asyncio.gather(*map(provider.get_job_logs, jobs))
        assert logs.pop(3) == "stays\n"
        assert logs == [f"number {n} alone\n" for n in range(20) if n != 3], (
            "the array is ours, not the program's"
        )
        for job_id in jobs:
            await provider.forget_job(job_id)
        assert not list((tmp_path / "slurm" / "arrays").iterdir())
        assert not list((tmp_path / "slurm").glob("attempt_*"))
        await provider.close()

    asyncio.run(check())


def test_what_waits_in_an_array_is_taken_out_alone_and_another_provider_finds_the_rest(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    async def check() -> None:
        provider = make(slurm, tmp_path, sbatch_options=["--hold"])
        configs = [job("echo done") for _ in range(5)]
        jobs = await together(provider, *configs)
        await provider.close()
        later = make(slurm, tmp_path)
        assert [
            await later.find_by_attempt(str(config.attempt_id)) for config in configs
        ] == jobs
        assert all(
            result.status is JobStatus.PENDING
            for result in (await later.poll_jobs(jobs)).values()
        )
        assert await later.cancel_job(jobs[1])
        slurm.call("scancel", jobs[2])
        ours = await until(later, jobs[1], *OVER)
        other = await until(later, jobs[2], *OVER)
        assert (ours.status, other.status, other.reason) == (
            JobStatus.CANCELLED,
            JobStatus.FAILED,
            "preempted",
        )
        assert not await later.cancel_job(jobs[1])
        for index in (0, 3, 4):
            slurm.call("scontrol", "release", jobs[index])
        for index in (0, 3, 4):
            assert (await until(later, jobs[index], *OVER)).exit_code == 0
        await later.close()

    asyncio.run(check())


def test_one_of_an_array_that_is_queued_again_is_preempted_and_the_others_run_on(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    end = tmp_path / "end"

    async def check() -> None:
        provider = make(slurm, tmp_path)
        jobs = await together(
            provider,
            *(job(f"while [ ! -e {end} ]; do sleep 0.1; done") for _ in range(4)),
        )
        for job_id in jobs:
            await until(provider, job_id, JobStatus.RUNNING)
        slurm.call("scontrol", "requeue", jobs[2])
        assert (await until(provider, jobs[2], *OVER)).reason == "preempted"
        end.touch()
        results = [await until(provider, job_id, *OVER) for job_id in jobs]
        assert [result.exit_code for result in results[:2] + results[3:]] == [0, 0, 0]
        await provider.close()

    asyncio.run(check())


@pytest.mark.parametrize("arrived", [True, False])
def test_an_array_whose_answer_is_lost_runs_each_job_once(
    slurm: SlurmCluster, tmp_path: Path, arrived: bool
) -> None:
    real = '/usr/bin/sbatch "$@" >/dev/null;' if arrived else ""
    lost = "echo 'sbatch: error: Zero Bytes were transmitted or received' >&2; exit 1"
    once = f"if mkdir {tmp_path}/first 2>/dev/null; then {real} {lost}; fi"
    environment = wrapped(slurm, tmp_path / "bin", once)

    async def check() -> None:
        provider = make(slurm, tmp_path, environment=environment)
        configs = [job(f"echo {number} >> {tmp_path}/ran") for number in range(8)]
        answers = await asyncio.gather(
            *map(provider.submit_job, configs), return_exceptions=True
        )
        lost = [answer for answer in answers if isinstance(answer, ProviderError)]
        assert lost
        assert {error.error_code for error in lost} == {"NOT_CONNECTED"}
        await provider.close()
        later = make(slurm, tmp_path, environment=environment)  # as after kill -9
        found = [
            await later.find_by_attempt(str(config.attempt_id)) for config in configs
        ]
        assert all(found) is arrived
        jobs = await together(later, *configs)
        assert not arrived or jobs == found
        for job_id in jobs:
            assert (await until(later, job_id, *OVER)).exit_code == 0
        assert sorted(map(int, (tmp_path / "ran").read_text().split())) == list(
            range(8)
        )
        await later.close()

    asyncio.run(check())


def test_a_refused_array_goes_one_by_one(slurm: SlurmCluster, tmp_path: Path) -> None:
    refused = (
        "echo 'sbatch: error: Batch job submission failed: Invalid job array"
        " specification' >&2; exit 1"
    )
    environment = wrapped(slurm, tmp_path / "bin", refused)

    async def check() -> None:
        provider = make(slurm, tmp_path, environment=environment)
        jobs = await together(provider, *(job(f"echo {number}") for number in range(6)))
        assert not [job_id for job_id in jobs if "_" in job_id]
        for number, job_id in enumerate(jobs):
            assert (await until(provider, job_id, *OVER)).exit_code == 0
            assert await provider.get_job_logs(job_id) == f"{number}\n"
        wrong = [
            job("true").model_copy(update={"provider_options": {"partition": "nope"}})
            for _ in range(3)
        ]
        answers = await asyncio.gather(
            *map(provider.submit_job, wrong), return_exceptions=True
        )
        assert {str(answer) for answer in answers} == {
            "Slurm refused the job: Invalid partition name specified"
        }
        await provider.close()

    asyncio.run(check())


def test_one_who_gave_up_waiting_disturbs_nobody(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    async def check() -> None:
        provider = make(slurm, tmp_path)
        tasks = [
            asyncio.create_task(provider.submit_job(job(f"echo {number}")))
            for number in range(6)
        ]
        await asyncio.sleep(0.01)
        tasks[2].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(answers.pop(2), asyncio.CancelledError)
        for job_id in map(str, answers):
            assert (await until(provider, job_id, *OVER)).exit_code == 0
        await provider.close()

    asyncio.run(check())


@pytest.mark.parametrize("way", ["ssh", "rest"])
def test_arrays_go_every_way(
    way: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if way == "ssh":
        cluster: SlurmCluster = request.getfixturevalue("slurm")
        sshd: Sshd = request.getfixturevalue("sshd")
        provider = make(
            cluster,
            tmp_path,
            host="login",
            ssh_options=sshd.options,
            spool=str(tmp_path / "spool"),
        )
    else:
        rest: RestCluster = request.getfixturevalue("slurm_rest")
        provider = SlurmProvider({"home": str(tmp_path), "rest": rest.unix})

    async def check() -> None:
        configs = [job(f"echo number {number}; exit {number}") for number in range(8)]
        configs[5] = job("sleep 600")
        jobs = await together(provider, *configs)
        submissions = {job_id.partition("_")[0] for job_id in jobs}
        assert len(submissions) < len(jobs), "some went together"
        await until(provider, jobs[5], JobStatus.RUNNING)
        assert await provider.cancel_job(jobs[5])
        results = [await until(provider, job_id, *OVER) for job_id in jobs]
        assert results.pop(5).status is JobStatus.CANCELLED
        assert [result.exit_code for result in results] == [0, 1, 2, 3, 4, 6, 7]
        assert await provider.get_job_logs(jobs[4]) == "number 4\n"
        await provider.close()

    asyncio.run(check())
