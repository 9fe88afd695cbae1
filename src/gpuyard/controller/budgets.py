"""Budgets: keeps what is spent of each, tells when one is nearly or wholly spent, and
ends what runs of a hard one.

The scheduler asks the table in the view before a job enters the queue. What attempts
that end cost is added there at once; the ledger is read at the start, when a period
begins, and now and then.
"""

import asyncio
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import structlog

from gpuyard.billing.costs import ReportOrder, report
from gpuyard.billing.exchange import Exchange, Paid, worth_within
from gpuyard.billing.meter import cost
from gpuyard.billing.parts import amount, micros
from gpuyard.billing.periods import day_at, month_at
from gpuyard.controller import transitions
from gpuyard.controller.core import Core
from gpuyard.controller.visibility import EVERYTHING, Visibility
from gpuyard.domain.budgets import Budget, BudgetPeriod, BudgetSpec
from gpuyard.domain.cost_keys import CostBy
from gpuyard.domain.errors import InvalidInputError, LedgerError, NotFoundError
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.exchange_rates import ExchangeRates, day_of
from gpuyard.domain.reasons import Reason
from gpuyard.domain.states import AttemptState
from gpuyard.ledger.queries import Row
from gpuyard.scheduler.attempts import LiveAttempt
from gpuyard.scheduler.budgets import BudgetTable, EndedCost, LiveBudget
from gpuyard.scheduler.jobs import LiveJob

LOOK_AGAIN_S = 2.0
# How often the ledger is read while attempts end.
_READ_AGAIN_S = 60.0
_NEARLY_PERCENT = 80
_WHOLLY_PERCENT = 100
_EVER = (0.0, 253_402_300_799.0)
# What a job is taken to need that names neither a time limit nor an estimate.
_UNKNOWN_S = 3600.0
log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Kept:
    """A row of the ledger, and the period for which `spent` is known."""

    row: dict[str, Any]
    begin: float
    end: float
    read_at: float = float("-inf")
    missing: set[str] = field(default_factory=set[str])


class Budgets:
    """The budgets of an instance, as an extension of the controller."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._kept: dict[str, _Kept] = {}
        self._alarm: asyncio.TimerHandle | None = None
        core.budget_table = self.new_table

    # --- the extension ---

    def start(self) -> None:
        """Begin to look at them."""
        self._set_alarm()

    def before_deciding(self) -> None:
        """Nothing: the view asks its table itself."""

    def reload(self) -> None:
        """Nothing: the new view was made with its table."""

    @property
    def idle(self) -> bool:
        """Always: what waits for a budget is a live job."""
        return True

    async def close(self) -> None:
        """Look no more."""
        self._clear_alarm()

    def new_table(self) -> BudgetTable:
        """The table of a new view, with what the ledger says."""
        table = BudgetTable(reserve_of=self.reserve_of, worth=self.worth)
        self._kept = {}
        for row in self._core.queries.budgets():
            self._keep(table, row)
        for name in list(self._kept):
            self._read(table, name)
        return table

    # --- what people ask for ---

    def listing(self, visibility: Visibility = EVERYTHING) -> list[Budget]:
        """All budgets by name, but for those of projects that are hidden."""
        return [
            self._shown(name)
            for name in sorted(self._kept)
            if visibility.sees(self._kept[name].row["project"])
        ]

    def find(self, name: str, visibility: Visibility = EVERYTHING) -> Budget:
        """The budget of this name; NotFoundError."""
        kept = self._kept.get(name)
        if kept is None or not visibility.sees(kept.row["project"]):
            raise NotFoundError(
                f"There is no budget {name}.", "`gpuyard budgets` lists all."
            )
        return self._shown(name)

    async def set(self, name: str, spec: BudgetSpec) -> Budget:
        """Add or replace a budget; InvalidInputError without a rate of its currency."""
        now = self._core.clock()
        currency = spec.currency or self._rates.currency
        if self._rates.rate_at(currency, now) is None:
            raise InvalidInputError.of(
                "currency",
                f"{self._rates.missing(currency)} has no rate",
                f"give {self._rates.currency}, or set [billing] rates",
            )
        values = {
            "project": spec.project,
            "owner": spec.user,
            "period": spec.period.value,
            "amount": str(spec.amount),
            "currency": currency,
            "hard": spec.hard,
            "timezone": spec.timezone,
            "created_at": now,
            "told_of": None,
            "told": 0,
        }
        change = Change(Table.BUDGETS, name, values)
        info = {
            "budget": name,
            **spec.model_dump(mode="json"),
            "currency": currency,
        }
        self._core.emit([Event(EventKind.BUDGET_SET, now, (change,), None, info)])
        await self._core.committed()
        self._keep(self._table, {"name": name, **values})
        await self._read_soon(name)
        self._admit_anew()
        self._judge(name)
        self._set_alarm()
        return self._shown(name)

    async def remove(self, name: str) -> Budget:
        """Remove a budget; what it was. NotFoundError."""
        before = self.find(name)
        change = Change(Table.BUDGETS, name, None)
        info = {"budget": name, "project": before.project}
        now = self._core.clock()
        self._core.emit([Event(EventKind.BUDGET_REMOVED, now, (change,), None, info)])
        await self._core.committed()
        del self._kept[name]
        del self._table.by_name[name]
        self._admit_anew()
        return before

    # --- money ---

    def reserve_of(self, job: LiveJob, currency: str) -> int | None:
        """What a job may cost: its list price for its time limit or its estimate."""
        price = self._core.list_price_for(job)
        seconds = job.estimated_s or job.timeout_s or _UNKNOWN_S
        return self._converted(
            price.per_hour * Decimal(str(seconds)) / 3600, price.currency, currency
        )

    def worth(self, budget: LiveBudget, cost: EndedCost) -> int:
        """What of a cost counts in the present period of the budget. If a rate is
        missing, nothing does, and the budget says so.
        """
        kept = self._kept[budget.name]
        paid = Paid(Decimal(cost.cost), cost.currency, cost.began, cost.ran_s)
        exchange = Exchange(self._rates, budget.currency)
        worth = worth_within(exchange, paid, kept.begin, kept.end)
        if worth is None:
            kept.missing.add(cost.currency)
        return round(worth or 0)

    def _converted(self, money: Decimal, currency: str, wanted: str) -> int | None:
        """The millionths of another currency that an amount is worth now."""
        day = day_of(self._core.clock())
        rate = self._rates.between(currency, wanted, day)
        return None if rate is None else round(micros(money) * rate)

    @property
    def _rates(self) -> ExchangeRates:
        return self._core.settings.billing.exchange

    # --- keeping them ---

    @property
    def _table(self) -> BudgetTable:
        return self._core.view.budgets

    def _keep(self, table: BudgetTable, row: Row) -> None:
        period = BudgetPeriod(row["period"])
        zone = ZoneInfo(row["timezone"])
        begin, end = _bounds(period, self._core.clock(), zone)
        self._kept[row["name"]] = _Kept(dict(row), begin, end)
        table.by_name[row["name"]] = LiveBudget(
            row["name"],
            micros(Decimal(row["amount"])),
            row["currency"],
            row["project"],
            row["owner"],
            period.value,
            None if period is BudgetPeriod.TOTAL else end,
            is_known=False,
        )

    def _begin_period(self, name: str) -> None:
        """Its next period has begun, or the clock was set back into the last one: until
        it is read what is spent in there, nothing more starts.
        """
        kept = self._kept[name]
        budget = self._table.by_name[name]
        zone = ZoneInfo(kept.row["timezone"])
        period = BudgetPeriod(kept.row["period"])
        begin, end = _bounds(period, self._core.clock(), zone)
        self._kept[name] = _Kept(kept.row, begin, end)
        budget.ends_at = end
        budget.is_known = False

    def _read(self, table: BudgetTable, name: str) -> None:
        """Read from the ledger what is spent. Blocks on it."""
        kept = self._kept[name]
        spent, missing, _ = self._spent(kept, {})
        table.by_name[name].spent = spent
        table.by_name[name].is_known = True
        kept.missing = set(missing)
        kept.read_at = self._core.clock()

    async def _read_soon(self, name: str) -> None:
        """The same in a thread. What ends meanwhile counts once, whether the ledger had
        it already when it was read or not.
        """
        kept = self._kept[name]
        noted: dict[str, int] = {}
        self._table.by_name[name].noted = noted
        # What ended before is in the ledger then.
        await self._core.committed()
        spent, missing, ended = await asyncio.to_thread(self._spent, kept, noted)
        budget = self._table.by_name.get(name)
        if budget is None or budget.noted is not noted:
            return
        if self._kept[name] is not kept:
            return
        budget.noted = None
        later = [
            worth for attempt_id, worth in noted.items() if attempt_id not in ended
        ]
        budget.spent = spent + sum(later)
        budget.is_known = True
        kept.missing = set(missing)
        kept.read_at = self._core.clock()

    def _spent(
        self, kept: _Kept, noted: Mapping[str, int]
    ) -> tuple[int, tuple[str, ...], Set[str]]:
        """What attempts that have ended cost in its period, the currencies for which
        there is no rate, and which of the `noted` attempts are in there.
        """
        row = kept.row
        by = CostBy.USER if row["project"] is None else CostBy.PROJECT
        exchange = Exchange(self._rates, row["currency"])
        changes = self._rates.changes(kept.begin, kept.end)
        order = ReportOrder(
            by, kept.begin, kept.end, ZoneInfo("UTC"), rate_days=changes
        )
        read = self._core.queries.costs(order.period(), lambda: list(noted))
        rows = read._replace(live=[])
        found = report(order, rows, lambda _, __: 0.0, exchange)
        whose = row["project"] or row["owner"]
        lines = [each for each in found.items if whose in (None, each.key)]
        known = [each.converted for each in lines if each.converted is not None]
        missing = [each.currency for each in lines if each.converted is None]
        return micros(sum(known, Decimal(0))), tuple(missing), rows.ended

    def _admit_anew(self) -> None:
        """A budget was changed: reserve for what runs or is in the queue, and see who
        may start.
        """
        view = self._core.view
        view.revision += 1
        table = view.budgets
        for job in list(view.jobs.values()):
            if job.attempt_id:
                table.hold(job)
            elif job.id in view.queue:
                view.remove_job(job)
                table.leave(job)
                view.enqueue(job)
        waiting = table.waiting_jobs()
        for job in waiting:
            table.forget(job)
        for job in waiting:
            view.enqueue(job)
        self._core.schedule_soon()

    # --- looking at them ---

    def _set_alarm(self) -> None:
        """Look at them again, if there are any."""
        self._clear_alarm()
        if self._kept:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(LOOK_AGAIN_S, self._look_soon)

    def _clear_alarm(self) -> None:
        if self._alarm:
            self._alarm.cancel()
        self._alarm = None

    def _look_soon(self) -> None:
        self._core.spawn(self._look(), "budgets")

    async def _look(self) -> None:
        for name in list(self._kept):
            try:
                await self._look_at(name)
            except LedgerError:
                log.warning("a budget could not be looked at", budget=name)
        self._set_alarm()

    async def _look_at(self, name: str) -> None:
        kept = self._kept.get(name)
        if kept is None:
            return
        now = self._core.clock()
        if not kept.begin <= now < kept.end:
            self._begin_period(name)
            kept = self._kept[name]
        if not self._table.by_name[name].is_known:
            await self._read_soon(name)
            self._admit_anew()
        elif now - kept.read_at > _READ_AGAIN_S:
            await self._read_soon(name)
        budget = self._table.by_name.get(name)
        if budget and budget.is_known:
            self._judge(name)

    def _judge(self, name: str) -> None:
        """Tell when it is nearly or wholly spent, and end what runs of a hard one."""
        kept = self._kept[name]
        budget = self._table.by_name[name]
        for attempt, job in self._running(budget):
            self._raise_reserve(budget, attempt, job)
        used = budget.spent + sum(
            self._so_far(budget, attempt) for attempt, _ in self._running(budget)
        )
        self._core.view.admit_to_budgets()
        told = kept.row["told"] if kept.row["told_of"] == kept.begin else 0
        for percent in (_WHOLLY_PERCENT, _NEARLY_PERCENT):
            if used * 100 >= budget.amount * percent:
                if told < percent:
                    self._tell(name, percent, used)
                break
        if kept.row["hard"] and used >= budget.amount:
            self._end_running(budget)

    def _running(self, budget: LiveBudget) -> list[tuple[LiveAttempt, LiveJob]]:
        """Its attempts that run."""
        view = self._core.view
        found = [
            (attempt, view.jobs[attempt.job_id])
            for attempt in view.attempts.values()
            if attempt.job_id in view.jobs and attempt.started_at is not None
        ]
        return [(attempt, job) for attempt, job in found if budget.covers(job)]

    def _paid(self, attempt: LiveAttempt) -> EndedCost:
        """What a running attempt has cost until now."""
        began = attempt.started_at or 0.0
        ran_s = self._core.ran_s(attempt.id, began)
        spent = str(cost(Decimal(attempt.price_per_hour), ran_s))
        return EndedCost(attempt.id, spent, attempt.currency, began, ran_s)

    def _so_far(self, budget: LiveBudget, attempt: LiveAttempt) -> int:
        """What a running attempt has cost in the present period."""
        return self.worth(budget, self._paid(attempt))

    def _still_to_come(
        self, budget: LiveBudget, attempt: LiveAttempt, paid: EndedCost
    ) -> int:
        """What a running attempt may still cost in the present period, beyond what is
        `paid`: the rest of its reserve, as far as it can use that up until the end.
        """
        in_all = self._converted(Decimal(paid.cost), paid.currency, budget.currency)
        left = max(budget.reserved.get(attempt.job_id, 0) - (in_all or 0), 0)
        if budget.ends_at is None:
            return left
        until_end_s = max(budget.ends_at - self._core.clock(), 0.0)
        most = cost(Decimal(attempt.price_per_hour), until_end_s)
        return min(left, self._converted(most, paid.currency, budget.currency) or 0)

    def _raise_reserve(
        self, budget: LiveBudget, attempt: LiveAttempt, job: LiveJob
    ) -> None:
        """A job that costs more than was reserved for it takes more."""
        needed = self.reserve_of(job, budget.currency) or 0
        budget.reserve(job.id, max(needed, self._so_far(budget, attempt)))

    def _tell(self, name: str, percent: int, used: int) -> None:
        kept = self._kept[name]
        kept.row |= {"told_of": kept.begin, "told": percent}
        values = {"told_of": kept.begin, "told": percent}
        is_spent = percent == _WHOLLY_PERCENT
        kind = EventKind.BUDGET_SPENT if is_spent else EventKind.BUDGET_NEARLY_SPENT
        budget = self._table.by_name[name]
        said = f"{amount(used):.2f} of {amount(budget.amount):.2f} {budget.currency}"
        info = {
            "budget": name,
            "project": kept.row["project"],
            "spent": str(amount(used)),
            "amount": kept.row["amount"],
            "currency": budget.currency,
            "ends_at": budget.ends_at,
            "problem": f"{said} are spent",
        }
        change = Change(Table.BUDGETS, name, values)
        self._core.emit([Event(kind, self._core.clock(), (change,), None, info)])

    def _end_running(self, budget: LiveBudget) -> None:
        core = self._core
        for attempt, _ in self._running(budget):
            if attempt.state is not AttemptState.ENDING:
                core.emit([transitions.ending(attempt, Reason.BUDGET, core.clock())])
                core.on_ending(attempt)

    def _shown(self, name: str) -> Budget:
        row = self._kept[name].row
        budget = self._table.by_name[name]
        so_far = 0
        to_come = 0
        for attempt, _ in self._running(budget):
            paid = self._paid(attempt)
            so_far += self.worth(budget, paid)
            to_come += self._still_to_come(budget, attempt, paid)
        reserved = sum(budget.reserved.values())
        exchange = Exchange(self._rates, budget.currency)
        missing = sorted(self._kept[name].missing)
        return Budget(
            name=name,
            project=row["project"],
            user=row["owner"],
            period=BudgetPeriod(row["period"]),
            amount=Decimal(row["amount"]),
            currency=row["currency"],
            hard=bool(row["hard"]),
            timezone=row["timezone"],
            spent=amount(budget.spent + so_far),
            reserved=amount(max(reserved - so_far, 0)),
            forecast=amount(budget.spent + so_far + to_come),
            waiting=len(list(budget.waiting)),
            ends_at=budget.ends_at,
            missing_rates=[exchange.missing(currency) for currency in missing],
        )


def _bounds(period: BudgetPeriod, now: float, zone: ZoneInfo) -> tuple[float, float]:
    """From when until when its present period lasts."""
    match period:
        case BudgetPeriod.DAY:
            return day_at(now, zone)
        case BudgetPeriod.MONTH:
            return month_at(now, zone)
        case BudgetPeriod.TOTAL:
            return _EVER
