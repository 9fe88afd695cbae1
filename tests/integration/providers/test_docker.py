"""The provider `docker` on a real daemon."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuyard.providers.conformance import CASES, Subject
from gpuyard.providers.conformance.subject import Case
from gpuyard.providers.docker.provider import DockerProvider
from tests.support.dockerd import IMAGE, Dockerd


@pytest.mark.parametrize("case", CASES, ids=str)
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
