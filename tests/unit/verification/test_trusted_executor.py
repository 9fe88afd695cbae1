"""The orders of trusted executors, as their solvers read them."""

import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from gpuyard.config.verification import ExecutorSettings
from gpuyard.domain.errors import GpuyardError, UnreachableError
from gpuyard.domain.gpus import GPUClass
from gpuyard.domain.jobspec import JobSpec
from gpuyard.verification.channels import GoneError
from gpuyard.verification.executors import Executor
from gpuyard.verification.protocol import SAMPLING, OrderDocument
from gpuyard.verification.solver.order import SolverOrder, read_order
from gpuyard.verification.solver_jobs import NotStartedError
from gpuyard.verification.trusted_executor import (
    ExecutorFault,
    JobTrustedExecutor,
    TrustedAway,
)
from gpuyard.verification.waiting import Obstacle

if TYPE_CHECKING:
    from gpuyard.client.aio_job import AsyncJobHandle
    from gpuyard.verification.solver_jobs import SolverJobs

pytestmark = pytest.mark.anyio
SETTINGS = ExecutorSettings.model_validate(
    {"class": "t4", "engine": {"kind": "mock", "options": {"rounding": 0.5}}}
)
PROMPTS = ["one?", "two?"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class NotedJobs:
    """Notes the order of each job, and refuses the job."""

    def __init__(self, fault: Exception) -> None:
        self.fault = fault
        self.orders: list[OrderDocument] = []

    async def end_left_behind(self, executor: Executor, kind: str) -> None:
        """Nothing was left behind."""

    async def submit(
        self, executor: Executor, check_id: str, order: OrderDocument, limit_s: float
    ) -> "AsyncJobHandle":
        self.orders.append(order)
        raise self.fault


class TakenJobs(NotedJobs):
    """Takes the job, which then comes to this."""

    async def submit(
        self, executor: Executor, check_id: str, order: OrderDocument, limit_s: float
    ) -> "AsyncJobHandle":
        return cast("AsyncJobHandle", SimpleNamespace(id="job_1"))

    async def wait_until_started(self, *_: object) -> None:
        raise self.fault

    async def end(self, *_: object, **__: object) -> None:
        """It is over."""


def trusted_with(jobs: NotedJobs) -> JobTrustedExecutor:
    executor = Executor("own", GPUClass.T4, SETTINGS)
    return JobTrustedExecutor(executor, cast("SolverJobs", jobs), lambda: 1.0)


async def order_of(
    task: Callable[[JobTrustedExecutor], Awaitable[object]],
) -> SolverOrder:
    """The order of a task, as the solver reads it."""
    jobs = NotedJobs(GpuyardError("No place."))
    with pytest.raises(ExecutorFault, match="No place"):
        await task(trusted_with(jobs))
    (order,) = jobs.orders
    return read_order(json.dumps(order))


async def test_the_order_of_each_task_is_read_as_it_was_meant() -> None:
    cls = GPUClass.T4
    solve = await order_of(lambda one: one.solve(cls, PROMPTS, 7))
    assert (solve.task, solve.prompts, solve.seed) == ("solve", PROMPTS, 7)
    assert (solve.fingerprints, solve.tokens) == (False, "")
    follow = await order_of(lambda one: one.follow(cls, PROMPTS, 7, "abc"))
    assert (follow.prompts, follow.seed, follow.tokens) == (PROMPTS, 7, "abc")
    assert follow.fingerprints
    made = await order_of(lambda one: one.generate(cls, 2, 3))
    assert made.task == "generate"
    assert (made.generate["series"], made.generate["prompts"]) == (3, 2)
    probe = await order_of(lambda one: one.prove(cls, "ab", {"vram_gb": 1.0}))
    assert (probe.task, probe.claims) == ("probe", {"nonce": "ab", "vram_gb": 1.0})
    for order in (solve, follow, made, probe):
        assert order.check.startswith("trusted_")
        assert order.settings == SAMPLING
        assert (order.engine["kind"], order.engine["rounding"]) == ("mock", 0.5)


@pytest.mark.parametrize(
    ("jobs", "busy"),
    [
        (NotedJobs(GpuyardError("No place.")), False),
        (TakenJobs(NotStartedError("late", "", Obstacle.OTHER_JOBS)), True),
        (TakenJobs(NotStartedError("late")), False),
        (TakenJobs(UnreachableError("No server answers.")), False),
        (TakenJobs(GoneError("cancelled", ours=True)), False),
    ],
)
async def test_who_never_began_is_away_and_not_stopped_by_what_it_was_asked(
    jobs: NotedJobs, busy: bool
) -> None:
    with pytest.raises(TrustedAway) as found:
        await trusted_with(jobs).solve(GPUClass.T4, PROMPTS, 7)
    assert found.value.busy is busy


@pytest.mark.parametrize("fault", [GoneError("exit code 1"), TimeoutError()])
async def test_who_has_begun_and_ends_may_be_stopped_by_it(fault: Exception) -> None:
    with pytest.raises(ExecutorFault) as found:
        await trusted_with(TakenJobs(fault)).solve(GPUClass.T4, PROMPTS, 7)
    assert not isinstance(found.value, TrustedAway)


def test_what_a_trusted_executor_is_asked_comes_first() -> None:
    """Else the jobs of users could keep everybody else unjudged."""
    trusted = SETTINGS.model_copy(update={"trusted": True})
    priorities = [
        Executor("own", GPUClass.T4, settings).job("main.pyz", "{}")["priority"]
        for settings in (SETTINGS, trusted)
    ]
    assert priorities == [JobSpec.model_fields["priority"].default, 5]
