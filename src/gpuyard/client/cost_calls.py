"""Calls about costs and budgets; see `calls`."""

from typing import Any

from gpuyard.client.answers import items_of
from gpuyard.client.calls import Call, Json, StreamCall
from gpuyard.client.local_timezone import local_timezone
from gpuyard.client.segments import segment
from gpuyard.domain.benchmarks import BenchmarkReport
from gpuyard.domain.budgets import Budget
from gpuyard.domain.cost_advice import CostAdviceReport
from gpuyard.domain.costs import CostReport
from gpuyard.domain.fair_shares import FairShares

_PATH = "/api/v1/costs"


def costs(
    by: str, begin: float | None, end: float | None, timezone: str | None
) -> Call[CostReport]:
    """What attempts cost; the time zone is that of this machine unless it is named."""
    params = {"by": by, **_period(begin, end, timezone)}
    return Call("GET", _PATH, CostReport.model_validate, params=params)


def advice(begin: float | None, end: float | None) -> Call[CostAdviceReport]:
    """What could have cost less."""
    params = {"from": begin, "to": end}
    given = {name: value for name, value in params.items() if value is not None}
    return Call("GET", f"{_PATH}/advice", CostAdviceReport.model_validate, params=given)


def benchmarks(begin: float | None, end: float | None) -> Call[BenchmarkReport]:
    """How fast programs ran, and what that cost."""
    params = {"from": begin, "to": end}
    given = {name: value for name, value in params.items() if value is not None}
    read = BenchmarkReport.model_validate
    return Call("GET", f"{_PATH}/benchmarks", read, params=given)


def focus(begin: float | None, end: float | None, timezone: str | None) -> StreamCall:
    """The same as a CSV file in the columns of FOCUS."""
    return StreamCall(f"{_PATH}/focus", params=_period(begin, end, timezone))


def _period(
    begin: float | None, end: float | None, timezone: str | None
) -> dict[str, float | str]:
    given = {"from": begin, "to": end, "timezone": timezone or local_timezone()}
    return {name: value for name, value in given.items() if value is not None}


def shares() -> Call[FairShares]:
    """The shares of all, and what they have used."""
    return Call("GET", "/api/v1/shares", FairShares.model_validate)


_BUDGETS = "/api/v1/budgets"


def budgets() -> Call[list[Budget]]:
    """Every budget, by name."""
    return Call("GET", _BUDGETS, items_of(Budget))


def budget(name: str) -> Call[Budget]:
    """One budget."""
    return Call("GET", f"{_BUDGETS}/{segment(name)}", Budget.model_validate)


def set_budget(name: str, amount: Any, fields: Json) -> Call[Budget]:
    """Add or replace a budget, in the time zone of this machine unless it is named."""
    body = {"amount": str(amount), **fields}
    if body.get("timezone") is None:
        body["timezone"] = local_timezone()
    path = f"{_BUDGETS}/{segment(name)}"
    return Call("PUT", path, Budget.model_validate, body=body, done_once=True)


def remove_budget(name: str) -> Call[Budget]:
    """Remove a budget; what it was."""
    return Call("DELETE", f"{_BUDGETS}/{segment(name)}", Budget.model_validate)
