"""What is spent of a budget, while attempts end and the ledger is read."""

import asyncio
import threading
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gpuyard.domain.budgets import BudgetSpec
from tests.support.controlled import Controlled

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def instance(tmp_path: Path) -> AsyncIterator[Controlled]:
    made = Controlled(tmp_path, billing={"local_price_per_hour": "3600000"})
    await made.start()
    yield made
    await made.settled()
    made.check()
    await made.stop()


@pytest.mark.parametrize("ends", ["before it is read", "after it was read"])
async def test_what_ends_while_the_ledger_is_read_counts_once(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    job_id = await instance.submit(project="vision")
    await instance.begun(job_id)
    queries = instance.controller.core.queries
    read = type(queries).costs
    reading = threading.Event()
    ended = threading.Event()

    def costs(*arguments: Any) -> Any:
        if ends == "after it was read":
            found = read(*arguments)
        reading.set()
        assert ended.wait(20)
        return found if ends == "after it was read" else read(*arguments)

    monkeypatch.setattr(type(queries), "costs", costs)
    spec = BudgetSpec(amount=Decimal(1_000_000), project="vision")
    setting = asyncio.create_task(instance.controller.budgets.set("b", spec))
    await asyncio.to_thread(reading.wait, 20)
    await instance.finish(job_id)
    await instance.controller.core.committed()
    ended.set()
    budget = await setting
    (attempt,) = queries.attempts_of([job_id])[job_id]
    cost = Decimal(attempt["cost"])
    assert cost > 0
    assert budget.spent == cost
