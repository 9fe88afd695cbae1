"""What channels through the instance ask of solvers and of their jobs."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from gpuyard.client.aio import AsyncClient
from gpuyard.client.aio_job import AsyncJobHandle
from gpuyard.config.verification import ExecutorSettings
from gpuyard.domain.errors import GpuyardError
from gpuyard.domain.gpus import GPUClass
from gpuyard.domain.jobs import Job
from gpuyard.verification.channels import AFTER_S, InstanceChannels
from gpuyard.verification.classes import TRAITS
from gpuyard.verification.executors import Executor
from gpuyard.verification.hub import Hub
from gpuyard.verification.protocol import OrderDocument
from gpuyard.verification.solver_jobs import SolverJobs
from tests.support.executors import executor
from tests.support.verification import B

pytestmark = pytest.mark.anyio
HANDED_OVER: dict[str, object] = {
    "id": "attempt_1",
    "number": 1,
    "state": "pending",
    "token": 1,
    "provider": "local",
    "created_at": 0.0,
}


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


SOLVER = {"verification": "chk_2"}
"""The label of another check's job."""


class OtherJobs:
    """A client of an instance where these jobs run."""

    def __init__(self, *running: Job) -> None:
        self._running = running

    async def jobs(self, **filters: object) -> AsyncIterator[Job]:
        assert filters == {"state": ["running"]}
        for job in self._running:
            yield job


def job_of(state: str, **fields: object) -> Job:
    """A job of the instance."""
    known = {"id": "job_1", "name": "other", "kind": "command", "priority": 0}
    return Job.model_validate({**known, "state": state, "created_at": 0.0, **fields})


@pytest.mark.parametrize(
    ("here", "other", "takes"),
    [
        ({"gpu": "GPU-1"}, {"provider": "local", "gpus": []}, False),
        ({}, {"provider": "local", "gpus": []}, False),
        ({}, {"provider": "local", "gpus": ["GPU-7"]}, True),
        ({"provider": "slurm"}, {"provider": "slurm", "gpus": ["GPU-7"]}, False),
        ({}, {"provider": "local", "gpus": ["GPU-7"], "labels": SOLVER}, False),
        (
            {"gpu": "GPU-7"},
            {"provider": "local", "gpus": ["GPU-7"], "labels": SOLVER},
            True,
        ),
    ],
)
async def test_only_a_job_that_has_its_place_explains_why_no_check_begins(
    tmp_path: Path, here: dict[str, object], other: dict[str, object], takes: bool
) -> None:
    """Else a job that costs nothing would do, or any job in another queue."""
    client = cast(AsyncClient, OtherJobs(job_of("running", **other)))
    settings = ExecutorSettings.model_validate({"class": "t4", **here})
    rented = Executor("rented", GPUClass.T4, settings)
    jobs = SolverJobs(client, tmp_path)
    assert await jobs.is_held_by_us(rented, job_of("queued")) is takes


@pytest.mark.parametrize(
    ("waits", "other", "held"),
    [
        ({}, {"provider": "local", "gpus": ["GPU-1"]}, True),
        ({}, {"provider": "local", "gpus": ["GPU-2"]}, False),
        ({}, {"provider": "slurm", "gpus": ["GPU-1"]}, False),
        (
            {"attempts": [HANDED_OVER]},
            {"provider": "local", "gpus": ["GPU-1"]},
            False,
        ),
    ],
)
async def test_a_job_waits_for_us_only_where_another_job_of_ours_runs(
    tmp_path: Path, waits: dict[str, object], other: dict[str, object], held: bool
) -> None:
    client = cast(AsyncClient, OtherJobs(job_of("running", **other)))
    settings = ExecutorSettings.model_validate({"class": "t4", "gpu": "GPU-1"})
    rented = Executor("rented", GPUClass.T4, settings)
    jobs = SolverJobs(client, tmp_path)
    assert await jobs.is_held_by_us(rented, job_of("queued", **waits)) is held
