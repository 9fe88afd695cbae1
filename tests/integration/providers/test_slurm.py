"""The provider `slurm` on a real cluster of four nodes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuyard.providers.conformance import CASES, Subject
from gpuyard.providers.conformance.subject import Case
from gpuyard.providers.slurm.provider import SlurmProvider
from tests.support.slurm import SlurmCluster, slurm

__all__ = ["slurm"]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conformance(case: Case, slurm: SlurmCluster, tmp_path: Path) -> None:
    @asynccontextmanager
    async def subject() -> AsyncIterator[Subject]:
        config = {"home": str(tmp_path), "poll_s": 0.2, "environment": slurm.environment, "price_per_hour": 3600}
        provider = SlurmProvider(config)
        yield Subject(provider, missing_workdir={"workdir": "/no/such/folder"}, pause_s=0.1)
        await provider.close()

    case.run(subject)
