"""Scripts of one's own on a real cluster: sent as they are, and told alike."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gpuyard.domain.errors import InsufficientResourcesError, ProviderError
from gpuyard.domain.ids import new_id
from gpuyard.domain.jobconfig import JobConfig, JobResult, JobStatus
from gpuyard.providers.slurm.provider import SlurmProvider
from tests.support.slurm import SlurmCluster

OVER = (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)


def job(tmp_path: Path, *lines: str) -> JobConfig:
    path = tmp_path / "job.slurm"
    head = [
        "#!/bin/sh",
        "#SBATCH --job-name=own",
        "#SBATCH --nodes=2",
        f"#SBATCH --output={tmp_path}/slurm-%j.out",
    ]
    path.write_text("\n".join([*head, *lines]) + "\n")
    options = {"slurm": {"script": str(path)}, "workdir": str(tmp_path)}
    return JobConfig(
        name="other",
        command=("sbatch", str(path)),
        provider_options=options,
        attempt_id=new_id("attempt"),
    )


async def until(provider: SlurmProvider, job_id: str, *wanted: JobStatus) -> JobResult:
    async with asyncio.timeout(60):
        while (result := await provider.get_job_status(job_id)).status not in wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # nobody tells
    return result


def run(
    cluster: SlurmCluster,
    tmp_path: Path,
    check: Callable[[SlurmProvider], Awaitable[None]],
) -> None:
    async def whole() -> None:
        provider = SlurmProvider(
            {"home": str(tmp_path / "home"), "environment": cluster.environment}
        )
        await check(provider)
        await provider.close()

    asyncio.run(whole())


def test_it_is_sent_as_it_is(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUYARD_TOKEN", "hush")
    monkeypatch.setenv("SLURM_JWT", "hush")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    wait = f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done"
    config = job(
        tmp_path,
        "echo $SLURM_JOB_NAME on $SLURM_NNODES",
        "env | grep hush || echo no secrets",
        wait,
    )

    async def check(provider: SlurmProvider) -> None:
        job_id = await provider.submit_job(config)
        assert (
            await provider.submit_job(config)
            == job_id
            == await provider.find_by_attempt(str(config.attempt_id))
        )
        running = await until(provider, job_id, JobStatus.RUNNING)
        assert running.started_at
        assert (
            slurm.call("squeue", "-h", "-j", job_id, "-o", "%j %k").strip()
            == f"own {config.attempt_id}"
        )
        (tmp_path / "go").touch()
        parts = [
            part async for part in provider.stream_logs(job_id, lines=None, follow=True)
        ]
        assert (
            b"".join(parts)
            == b"own on 2\nno secrets\n"
            == (tmp_path / f"slurm-{job_id}.out").read_bytes()
        )
        end = await until(provider, job_id, *OVER)
        assert (end.status, end.exit_code, end.reason, end.error_message) == (
            JobStatus.COMPLETED,
            0,
            "",
            None,
        )
        assert end.completed_at
        assert end.usage["elapsed_s"] == end.completed_at - (end.started_at or 0)
        await provider.forget_job(job_id)
        assert not list((tmp_path / "home" / "slurm").glob("attempt_*"))

    run(slurm, tmp_path, check)


def test_its_end_is_told_and_outlives_slurms_memory(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    async def check(provider: SlurmProvider) -> None:
        job_id = await provider.submit_job(job(tmp_path, "exit 3"))
        end = await until(provider, job_id, *OVER)
        assert (end.status, end.exit_code, end.reason) == (JobStatus.FAILED, 3, "")
        (tmp_path / "bin").mkdir()
        for name in ("squeue", "scontrol", "sacct"):
            (tmp_path / "bin" / name).write_text("#!/bin/sh\nexit 0\n")
            (tmp_path / "bin" / name).chmod(0o755)
        forgetful = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
        later = SlurmProvider(
            {"home": str(tmp_path / "home"), "environment": forgetful}
        )
        again = await until(later, job_id, *OVER)
        assert (again.status, again.exit_code) == (JobStatus.FAILED, 3)

    run(slurm, tmp_path, check)


def test_cancelled_it_is_cancelled_and_taken_off_it_is_preempted(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    async def check(provider: SlurmProvider) -> None:
        ours, theirs = [
            await provider.submit_job(job(tmp_path, "sleep 600")) for _ in range(2)
        ]
        for job_id in (ours, theirs):
            await until(provider, job_id, JobStatus.RUNNING)
        assert await provider.cancel_job(ours)
        slurm.call("scancel", theirs)
        assert (await until(provider, ours, *OVER)).status is JobStatus.CANCELLED
        end = await until(provider, theirs, *OVER)
        assert (end.status, end.reason) == (JobStatus.FAILED, "preempted")

    run(slurm, tmp_path, check)


def test_with_accounts_the_most_memory_is_known(
    slurm_with_accounts: SlurmCluster, tmp_path: Path
) -> None:
    hold = (
        "srun -n1 -N1 python3 -c 'import time; x = bytearray(200 << 20); time.sleep(3)'"
    )

    async def check(provider: SlurmProvider) -> None:
        job_id = await provider.submit_job(job(tmp_path, hold))
        end = await until(provider, job_id, *OVER)
        assert end.exit_code == 0
        assert {"elapsed_s", "max_rss_bytes"} <= end.usage.keys()
        assert end.usage["max_rss_bytes"] >= 200 << 20

    run(slurm_with_accounts, tmp_path, check)


def test_what_cannot_be_sent_is_refused(slurm: SlurmCluster, tmp_path: Path) -> None:
    async def check(provider: SlurmProvider) -> None:
        missing = JobConfig(
            name="x",
            command=("x",),
            provider_options={
                "slurm": {"script": "/none/job.slurm"},
                "workdir": "/none",
            },
        )
        with pytest.raises(
            ProviderError, match=r"The script /none/job\.slurm cannot be read"
        ):
            await provider.submit_job(missing)
        with pytest.raises(
            ProviderError,
            match=r"stdin: sbatch gives /none/job\.slurm no standard input",
        ):
            await provider.submit_job(
                missing.model_copy(update={"args_via_stdin": b"x"})
            )
        with pytest.raises(ProviderError, match="Invalid partition"):
            await provider.submit_job(job(tmp_path, "#SBATCH --partition=none-such"))
        assert not list((tmp_path / "home" / "slurm").glob("attempt_*"))

    run(slurm, tmp_path, check)


def test_what_the_cluster_has_not_is_refused_in_slurms_words(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    """It is no lack of capacity, for which offers would be left out for a while."""

    async def check(provider: SlurmProvider) -> None:
        for line, words in (
            ("#SBATCH --gres=gpu:h100:2", "not available|Invalid generic resource"),
            ("#SBATCH --partition=none", "[Ii]nvalid partition"),
        ):
            with pytest.raises(ProviderError, match=words) as refused:
                await provider.submit_job(job(tmp_path, line))
            assert refused.value.error_code == "REFUSED"
            assert not isinstance(refused.value, InsufficientResourcesError)

    run(slurm, tmp_path, check)
