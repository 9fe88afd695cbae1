"""`/api/v1/costs`: what attempts cost in a period, and the same as a bill."""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from fastapi import Query, Request
from fastapi.responses import StreamingResponse

from gpuyard.billing import focus
from gpuyard.billing.advice import CostAdviser, spot_offers
from gpuyard.billing.benchmarks import Benchmarks, CompletedRun
from gpuyard.billing.costs import ReportOrder, report
from gpuyard.billing.ended_attempts import EndedAttempt
from gpuyard.billing.exchange import Exchange
from gpuyard.billing.periods import DAY_S, month_at
from gpuyard.controller.visibility import Visibility
from gpuyard.domain.benchmarks import BenchmarkReport
from gpuyard.domain.cost_advice import CostAdviceReport
from gpuyard.domain.cost_keys import CostBy
from gpuyard.domain.costs import CostReport
from gpuyard.domain.cron import time_zone
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.trust import LAST_TIME
from gpuyard.ledger.queries.base import Row
from gpuyard.server.api_router import api_router
from gpuyard.server.app_state import AppState
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.openapi import text
from gpuyard.server.permissions import visibility_of
from gpuyard.server.report_threads import in_report_thread

router = api_router("/costs", tag="costs")
# By day, there is a line for each: ten years of them are enough for people.
_MOST_DAYS = 3660
Moment = Annotated[float | None, Query(ge=0, le=LAST_TIME, allow_inf_nan=False)]
From = Annotated[
    Moment, Query(alias="from", description="UTC seconds; the begin of this month.")
]
To = Annotated[Moment, Query(alias="to", description="UTC seconds; now.")]
TimeZone = Annotated[
    str,
    Query(
        max_length=200,
        description="A name such as Europe/Berlin: of its days and months.",
    ),
]


@router.get("")
async def costs(
    request: Request,
    app_state: TheAppState,
    by: CostBy = CostBy.PROJECT,
    begin: From = None,
    end: To = None,
    timezone: TimeZone = "UTC",
) -> CostReport:
    """What attempts cost in the period, `by` one of their keys.

    An attempt that began before the period or ends after it counts with the part of its
    cost that belongs to its seconds in it. One that still runs counts until now.
    """
    visibility = visibility_of(request.scope, app_state.controller)
    order = _order(by, begin, end, timezone, visibility)
    return await in_report_thread(_report, app_state, order)


@router.get("/advice")
async def advice(
    request: Request,
    app_state: TheAppState,
    begin: From = None,
    end: To = None,
) -> CostAdviceReport:
    """What could have cost less, of the attempts that ended in the period: from what
    was measured of them.
    """
    visibility = visibility_of(request.scope, app_state.controller)
    order = _order(CostBy.PROJECT, begin, end, "UTC", visibility)
    adviser = _adviser(app_state)
    await _read_pages(app_state.queries.ended_uses, order, partial(_advise, adviser))
    return adviser.report(order.begin, order.end)


@router.get("/benchmarks")
async def benchmarks(
    request: Request,
    app_state: TheAppState,
    begin: From = None,
    end: To = None,
) -> BenchmarkReport:
    """How fast programs ran on each size and what that cost, of the jobs that completed
    in the period: from what was measured of them.
    """
    visibility = visibility_of(request.scope, app_state.controller)
    order = _order(CostBy.PROJECT, begin, end, "UTC", visibility)
    found = Benchmarks()
    read = app_state.queries.completed_runs
    await _read_pages(read, order, partial(_compare, found))
    return found.report(order.begin, order.end)


@router.get("/focus", response_class=StreamingResponse, responses=text("text/csv"))
async def export(
    request: Request,
    app_state: TheAppState,
    begin: From = None,
    end: To = None,
    timezone: TimeZone = "UTC",
) -> StreamingResponse:
    """The same for programs that read bills: a CSV file in the columns of FOCUS 1.1,
    with a row for each attempt that has ended, and for each month in which it ran.
    """
    visibility = visibility_of(request.scope, app_state.controller)
    order = _order(CostBy.PROJECT, begin, end, timezone, visibility)
    return StreamingResponse(_lines(app_state, order), media_type="text/csv")


def _order(
    by: CostBy,
    begin: float | None,
    end: float | None,
    timezone: str,
    visibility: Visibility,
) -> ReportOrder:
    zone = _zone(timezone)
    until = time.time() if end is None else end
    since = month_at(until, zone)[0] if begin is None else begin
    if since >= until:
        raise InvalidInputError.of(
            "from",
            f"is {since:.0f}, and the period ends at {until:.0f}",
            "begin before",
        )
    if by.is_time and until - since > _MOST_DAYS * DAY_S:
        raise InvalidInputError.of(
            "by", f"would give more than {_MOST_DAYS} days", "choose a shorter period"
        )
    return ReportOrder(by, since, until, zone, sorted(visibility.hidden))


def _zone(name: str) -> ZoneInfo:
    try:
        return time_zone(name)
    except ValueError as error:
        fault, _, remedy = str(error).rpartition("; ")
        raise InvalidInputError.of("timezone", fault, remedy) from None


def _report(app_state: AppState, order: ReportOrder) -> CostReport:
    """Blocks on the ledger."""
    rates = app_state.settings.billing.exchange
    exchange = Exchange(rates, rates.currency)
    dated = replace(order, rate_days=rates.changes(order.begin, order.end))
    providers = app_state.controller.providers
    whole_at = providers.keys() - providers.rented.keys()
    rows = app_state.queries.costs(dated.period(), in_parts=True, whole_at=whole_at)
    return report(dated, rows, app_state.controller.core.ran_s, exchange)


def _adviser(app_state: AppState) -> CostAdviser:
    """Knows the tiers and the spot offers of now."""
    core = app_state.controller.core
    queues = core.view.external_queues
    offers = queues.listing(core.policy.strategy)
    interrupted = {
        offer.id: queues.history.risk(offer.id, spot=True).interrupted
        for offer in offers
        if offer.spot
    }
    has_one_price = core.settings.billing.local_price_per_hour is not None
    tiers = None if has_one_price else core.tiers
    return CostAdviser(tiers, spot_offers(offers, interrupted))


def _advise(adviser: CostAdviser, page: Sequence[Row]) -> None:
    for row in page:
        adviser.add(EndedAttempt.of_row(row))


def _compare(found: Benchmarks, page: Sequence[Row]) -> None:
    for row in page:
        found.add(CompletedRun.of_row(row))


async def _read_pages(
    read: Callable[[float, float, str, Sequence[str]], list[Row]],
    order: ReportOrder,
    add: Callable[[Sequence[Row]], None],
) -> None:
    """Read all pages, each in a turn of its own: so other reports come between."""

    def read_page(after: str) -> str | None:
        page = read(order.begin, order.end, after, order.hidden)
        add(page)
        return page[-1]["id"] if page else None

    after: str | None = ""
    while after is not None:
        after = await in_report_thread(read_page, after)


async def _lines(app_state: AppState, order: ReportOrder) -> AsyncIterator[str]:
    yield focus.header()
    after = ""
    while True:
        read = app_state.queries.ended_attempts
        page = await in_report_thread(read, order.begin, order.end, after)
        if not page:
            return
        yield await in_report_thread(
            focus.lines, _seen(page, order), order.begin, order.end, order.zone
        )
        after = page[-1]["id"]


def _seen(
    page: Sequence[Mapping[str, Any]], order: ReportOrder
) -> list[Mapping[str, Any]]:
    return [row for row in page if row["project"] not in order.hidden]
