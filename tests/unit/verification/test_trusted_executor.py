"""The orders of trusted executors, as their solvers read them."""

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

import pytest

from gpuyard.config.verification import ExecutorSettings
from gpuyard.domain.errors import GpuyardError
from gpuyard.domain.gpus import GPUClass
from gpuyard.verification.executors import Executor
from gpuyard.verification.protocol import SAMPLING, OrderDocument
from gpuyard.verification.solver.order import SolverOrder, read_order
from gpuyard.verification.trusted_executor import ExecutorFault, JobTrustedExecutor

if TYPE_CHECKING:
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

    def __init__(self) -> None:
        self.orders: list[OrderDocument] = []

    async def end_left_behind(self, executor: Executor, kind: str) -> None:
        """Nothing was left behind."""

    async def submit(
        self, executor: Executor, check_id: str, order: OrderDocument, limit_s: float
    ) -> None:
        self.orders.append(order)
        raise GpuyardError("No place.")


async def order_of(
    task: Callable[[JobTrustedExecutor], Awaitable[object]],
) -> SolverOrder:
    """The order of a task, as the solver reads it."""
    jobs = NotedJobs()
    executor = Executor("own", GPUClass.T4, SETTINGS)
    trusted = JobTrustedExecutor(executor, cast("SolverJobs", jobs), lambda: 1.0)
    with pytest.raises(ExecutorFault, match="No place"):
        await task(trusted)
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
