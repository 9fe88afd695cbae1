"""The provider `docker` on a real daemon."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuyard.domain.jobconfig import JobStatus
from gpuyard.providers.conformance import Subject
from gpuyard.providers.conformance.subject import STAY, Case
from gpuyard.providers.docker.provider import DockerProvider
from tests.support.clock import survive_a_jump
from tests.support.conformance import all_but
from tests.support.dockerd import IMAGE, Dockerd


@pytest.mark.parametrize("case", all_but({"fifty_at_once"}), ids=str)
def test_conformance(case: Case, dockerd: Dockerd, tmp_path: Path) -> None:
    @asynccontextmanager
    async def subject() -> AsyncIterator[Subject]:
        provider = DockerProvider(
            {"home": str(tmp_path), "host": dockerd.host, "price_per_hour": 3600}
        )
        yield Subject(
            provider,
            image=IMAGE,
            missing_workdir={"workdir": "/no/such/folder"},
            pause_s=0.05,
        )
        await provider.close()

    case.run(subject)


def test_a_clock_that_jumps_ends_no_job_early_and_keeps_none_too_long(
    dockerd: Dockerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def jump() -> None:
        provider = DockerProvider({"home": str(tmp_path), "host": dockerd.host})
        subject = Subject(provider, image=IMAGE, pause_s=0.05)
        try:
            await survive_a_jump(subject, monkeypatch)
        finally:
            await subject.clean_up()
            await provider.close()

    asyncio.run(jump())


def test_a_cancelled_job_is_not_run_again(dockerd: Dockerd, tmp_path: Path) -> None:
    async def cancel() -> None:
        provider = DockerProvider({"home": str(tmp_path), "host": dockerd.host})
        subject = Subject(provider, image=IMAGE, pause_s=0.05)
        job = subject.job(STAY).model_copy(update={"retry_count": 3})
        job_id = await subject.running(job)
        assert await provider.cancel_job(job_id)
        result = await subject.ended(job_id)
        assert (result.status, result.logs) == (JobStatus.CANCELLED, "here\n")
        await provider.close()

    asyncio.run(cancel())
