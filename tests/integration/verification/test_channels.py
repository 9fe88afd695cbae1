"""What channels through the instance ask of solvers and of their jobs."""

from pathlib import Path
from typing import cast

import pytest

from gpuyard.client.aio import AsyncClient
from gpuyard.client.aio_job import AsyncJobHandle
from gpuyard.domain.errors import GpuyardError
from gpuyard.domain.gpus import GPUClass
from gpuyard.verification.channels import AFTER_S, InstanceChannels
from gpuyard.verification.classes import TRAITS
from gpuyard.verification.executors import Executor
from gpuyard.verification.hub import Hub
from gpuyard.verification.protocol import OrderDocument
from gpuyard.verification.solver_jobs import SolverJobs
from tests.support.executors import executor
from tests.support.verification import B

pytestmark = pytest.mark.anyio


class FullInstance(SolverJobs):
    """Looks at what it is asked for, and takes no job."""

    order: OrderDocument
    limit_s: float

    async def submit(
        self, executor: Executor, check_id: str, order: OrderDocument, limit_s: float
    ) -> AsyncJobHandle:
        self.order = order
        self.limit_s = limit_s
        raise GpuyardError("The instance is full.")


async def test_who_is_ready_waits_for_the_slowest_class_of_the_batch(
    tmp_path: Path,
) -> None:
    jobs = FullInstance(cast(AsyncClient, None), tmp_path)
    slowest = TRAITS[GPUClass.A6000]
    barrier_s = slowest.spin_up_s + slowest.prepare_s
    assert barrier_s > TRAITS[B].spin_up_s + TRAITS[B].prepare_s
    async with Hub() as hub:
        opens = InstanceChannels(jobs, hub, {B: 10.0, GPUClass.A6000: 35.0})
        with pytest.raises(GpuyardError):
            await opens.open(executor("quick", B), "chk_1", {"prompts": []}).ready()
    assert jobs.order["stream"]["wait_s"] >= barrier_s, (
        "it would leave, and fail, before its seed comes"
    )
    assert jobs.limit_s >= barrier_s + 2 * 10.0 + AFTER_S, "and its job would be ended"
