"""What is spent of a budget, while attempts end and the ledger is read."""

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gpuyard.domain.budgets import Budget, BudgetPeriod, BudgetSpec
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.exchange_rates import MissingRate
from tests.support.controlled import Controlled

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def instance(tmp_path: Path) -> AsyncIterator[Controlled]:
    # A second costs a thousand.
    billing = {
        "local_price_per_hour": "3600000",
        "rates": [{"currency": "EUR", "date": "2026-12-02", "rate": "1.25"}],
    }
    made = Controlled(tmp_path, billing=billing)
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
        assert ended.wait(60)
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


def at(text: str) -> float:
    """A local time in UTC, in seconds."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


async def the_time_is(instance: Controlled, text: str) -> None:
    """Set the clock, and let the budgets look at it."""
    instance.core.clock = lambda: at(text)
    await instance.controller.budgets._look()


async def runs(instance: Controlled, since: str, ran_s: float, **fields: Any) -> str:
    """A job that began at a time, and has run for so long by a clock that nobody sets;
    its id.
    """
    wanted = {"project": "vision", "timeout_s": 1, **fields}
    job_id = await instance.submit(**wanted)
    attempt_id = await instance.begun(job_id)
    await instance.until(job_id, "running")
    instance.host.attempts[attempt_id].started_at = at(since)
    instance.core.view.attempts[attempt_id].started_at = at(since)
    instance.core.run_clock.note(attempt_id, ran_s)
    return job_id


async def ran(instance: Controlled, since: str, ran_s: float) -> None:
    """The same of a job that has ended."""
    job_id = await runs(instance, since, ran_s)
    await instance.finish(job_id, exit_code=0, ran_s=ran_s)
    await instance.until(job_id)


async def budget_of(
    instance: Controlled, amount: int, period: BudgetPeriod, **fields: Any
) -> Budget:
    spec = BudgetSpec(amount=Decimal(amount), project="vision", period=period, **fields)
    return await instance.controller.budgets.set("b", spec)


def shown(instance: Controlled) -> Budget:
    return instance.controller.budgets.find("b")


@pytest.mark.parametrize(
    ("period", "now", "later", "ends"),
    [
        ("day", "2026-12-01 12:00", "2026-12-01 23:30", "2026-12-02 23:00"),
        ("month", "2026-12-31 22:00", "2026-12-31 23:30", "2027-01-31 23:00"),
    ],
)
async def test_a_new_period_begins_with_nothing_spent_and_starts_what_waits(
    instance: Controlled, period: str, now: str, later: str, ends: str
) -> None:
    await the_time_is(instance, now)
    await ran(instance, now, 90)
    before = await budget_of(
        instance, 100_000, BudgetPeriod(period), timezone="Europe/Berlin"
    )
    assert before.spent == 90_000
    waiting = await instance.submit(project="vision", timeout_s=50)
    assert shown(instance).waiting == 1
    await the_time_is(instance, later)
    after = shown(instance)
    assert (after.spent, after.waiting, after.ends_at) == (0, 0, at(ends))
    await instance.finish(waiting)


async def test_what_runs_over_the_end_of_a_period_counts_in_each_with_its_part(
    instance: Controlled,
) -> None:
    await the_time_is(instance, "2026-11-30 23:59:58")
    await budget_of(instance, 1_000_000, BudgetPeriod.MONTH)
    job_id = await runs(instance, "2026-11-30 23:59:00", 58)
    assert 58_000 <= shown(instance).spent <= 60_000
    # By the clock of the node, it ran for 30 seconds of December.
    instance.core.run_clock.note(shown_attempt(instance, job_id), 90)
    await the_time_is(instance, "2026-12-01 00:00:30")
    assert 30_000 <= shown(instance).spent < 90_000
    await instance.finish(job_id, exit_code=0, ran_s=90.0)
    await instance.until(job_id)
    assert shown(instance).spent == 30_000


def shown_attempt(instance: Controlled, job_id: str) -> str:
    attempt_id = instance.core.view.jobs[job_id].attempt_id
    assert attempt_id
    return attempt_id


async def test_a_clock_that_is_set_back_at_the_end_of_a_month_moves_no_cost(
    instance: Controlled,
) -> None:
    """What began in December counts there, though it is November again; and no job is
    ended for it.
    """
    await the_time_is(instance, "2026-12-01 00:10:00")
    await ran(instance, "2026-11-29 12:00", 90)
    december = await budget_of(instance, 100_000, BudgetPeriod.MONTH, hard=True)
    assert december.spent == 0
    job_id = await runs(instance, "2026-12-01 00:09:20", 40)
    assert shown(instance).spent >= 40_000
    await the_time_is(instance, "2026-11-30 23:50:00")
    november = shown(instance)
    assert (november.spent, november.ends_at) == (90_000, at("2026-12-01"))
    assert instance.job(job_id)["state"] == "running"
    await instance.finish(job_id, exit_code=0, ran_s=40.0)
    await instance.until(job_id)
    assert shown(instance).spent == 90_000
    await the_time_is(instance, "2026-12-01 00:20:00")
    assert shown(instance).spent == 40_000


@pytest.mark.parametrize(("period", "expected"), [("day", 70_000), ("total", 600_000)])
async def test_the_forecast_is_what_running_jobs_come_to_in_the_period(
    instance: Controlled, period: str, expected: int
) -> None:
    """One that may run for ten minutes has a minute until midnight."""
    await the_time_is(instance, "2026-12-01 23:59:00")
    await budget_of(instance, 1_000_000, BudgetPeriod(period))
    await runs(instance, "2026-12-01 23:58:50", 10, timeout_s=600)
    # It runs on meanwhile, by a clock that nobody sets.
    more = shown(instance).forecast - expected
    assert 0 <= more < 60_000


async def test_of_two_budgets_that_overlap_the_hard_one_ends_what_runs(
    instance: Controlled,
) -> None:
    await the_time_is(instance, "2026-12-01 12:00")
    job_id = await runs(instance, "2026-12-01 11:59", 60)
    other = await instance.submit(project="language")
    await instance.until(other, "running")
    await budget_of(instance, 1_000_000, BudgetPeriod.MONTH)
    everybodys = BudgetSpec(amount=Decimal(1), user="ana", hard=True)
    await instance.controller.budgets.set("ana's", everybodys)
    assert instance.job(job_id)["state"] == "running"
    small = BudgetSpec(amount=Decimal(60_000), project="vision", hard=True)
    await instance.controller.budgets.set("small", small)
    row = await instance.until(job_id)
    assert (row["state"], row["reason"]) == ("cancelled", "budget")
    assert instance.job(other)["state"] == "running"
    assert shown(instance).spent == instance.controller.budgets.find("small").spent


async def test_a_budget_in_another_currency_takes_the_rate_of_the_day_of_a_cost(
    instance: Controlled,
) -> None:
    await the_time_is(instance, "2026-12-01 12:00")
    with pytest.raises(InvalidInputError, match="EUR before 2026-12-02 has no rate"):
        await budget_of(instance, 100_000, BudgetPeriod.MONTH, currency="EUR")
    await the_time_is(instance, "2026-12-03 12:00")
    await ran(instance, "2026-12-03 11:00", 90)
    found = await budget_of(instance, 100_000, BudgetPeriod.MONTH, currency="EUR")
    assert (found.spent, found.missing_rates) == (72_000, [])
    # What has no rate is said, and not taken for anything.
    await ran(instance, "2026-12-01 11:00", 50)
    found = shown(instance)
    missing = [MissingRate(currency="EUR", before=date(2026, 12, 2))]
    assert (found.spent, found.missing_rates) == (72_000, missing)
    dollars = await budget_of(instance, 1_000_000, BudgetPeriod.MONTH)
    assert (dollars.currency, dollars.spent) == ("USD", 140_000)
