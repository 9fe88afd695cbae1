"""Reports of costs from a real ledger: whatever is cut and however it is added up, the
sums are those of the attempts.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.billing import focus
from gpuyard.billing.costs import ReportOrder, report
from gpuyard.billing.ended_attempts import EndedAttempt
from gpuyard.billing.exchange import Exchange
from gpuyard.billing.meter import cost
from gpuyard.billing.parts import amount, micros, part
from gpuyard.domain.cost_keys import CostBy
from gpuyard.domain.costs import CostLine, CostReport
from gpuyard.domain.exchange_rates import (
    ExchangeRate,
    ExchangeRates,
    MissingRate,
    day_of,
)
from gpuyard.domain.run_time import run_time_s
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.queries import cost_ranges
from gpuyard.ledger.tables import attempts, checkpoints, jobs, unused_gpus
from tests.support.blank_ledger import blank_ledger
from tests.support.examples import examples

BERLIN = ZoneInfo("Europe/Berlin")
# Over the end of October 2026, in which clocks are set back.
BEGIN = 1_792_800_000.0
SPAN_S = 12 * 86_400.0
NOW = BEGIN + SPAN_S
ALL = (BEGIN - 400 * 86_400, NOW + 400 * 86_400)


@dataclass(frozen=True)
class Ran:
    """An attempt. `ran_s` None: nobody measured; `ended_at` None: it still runs."""

    started_at: float | None
    ended_at: float | None
    ran_s: float | None
    price: str
    currency: str = "USD"
    project: str | None = None
    provider: str = "local"
    tier: str = "GPU_SMALL"
    gpus: int = 1
    reason: str | None = None
    saved: bool = False
    used: float | None = None
    basis: str = "list"
    is_of_earlier_version: bool = False
    prices: Mapping[str, str] | None = None

    @property
    def seconds(self) -> float:
        until = NOW if self.ended_at is None else self.ended_at
        return run_time_s(self.started_at, until, self.ran_s)

    @property
    def cost(self) -> Decimal:
        if self.ended_at is None and self.basis == "share":
            return Decimal(0)
        return cost(Decimal(self.price), self.seconds)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    path = tmp_path_factory.mktemp("costs") / "ledger.db"
    opened = Ledger.open(blank_ledger(path))
    with pytest.MonkeyPatch.context() as patch:
        # Else so few attempts are sorted.
        patch.setattr(cost_ranges, "FEWEST_A_RANGE", 0)
        yield opened
    opened.close()


@dataclass(frozen=True)
class Unused:
    """A reserved GPU that nobody used; `ran_s` None: nobody does now."""

    began_at: float
    ran_s: float | None
    reserved_s: float
    price: str
    project: str | None = None

    @property
    def seconds(self) -> float:
        if self.ran_s is not None:
            return self.ran_s
        return max(min(NOW - self.began_at, self.reserved_s), 0.0)

    @property
    def worth(self) -> Decimal:
        return cost(Decimal(self.price), self.seconds)


def write(ledger: Ledger, ran: Sequence[Ran], unused: Sequence[Unused] = ()) -> None:
    """Let the ledger hold these, and nothing else."""
    rows = list(enumerate(ran))
    with ledger.engine.begin() as tx:
        for table in (attempts, jobs, checkpoints, unused_gpus):
            tx.execute(sa.delete(table))
        if unused:
            values = [unused_row(n, each) for n, each in enumerate(unused)]
            tx.execute(sa.insert(unused_gpus), values)
        if not rows:
            return
        tx.execute(
            sa.insert(jobs),
            [
                {
                    "id": f"job_{n}",
                    "name": f"job-{n}",
                    "project": a.project,
                    "labels": {"run": str(n)},
                    "shape": {"gpus": a.gpus} if a.gpus else {},
                }
                for n, a in rows
            ],
        )
        tx.execute(sa.insert(attempts), [row(n, a) for n, a in rows])
        saved = [
            {"id": f"ckpt_{n}", "job_id": f"job_{n}", "attempt_id": f"att_{n:03}"}
            for n, a in rows
            if a.saved
        ]
        if saved:
            tx.execute(sa.insert(checkpoints), saved)


def unused_row(number: int, unused: Unused) -> dict[str, object]:
    is_over = unused.ran_s is not None
    return {
        "id": f"unused_{number}",
        "reservation": "reservation_1",
        "project": unused.project,
        "owner": None if unused.project else "ana",
        "provider": "local",
        "uuid": "GPU-1",
        "gpu": "t4",
        "tier": "GPU_SMALL",
        "price_per_hour": unused.price,
        "currency": "USD",
        "began_at": unused.began_at,
        "reserved_until": unused.began_at + unused.reserved_s,
        "ran_s": unused.ran_s,
        "cost": str(unused.worth) if is_over else None,
    }


def row(number: int, ran: Ran) -> dict[str, object]:
    is_over = ran.ended_at is not None
    own = not ran.is_of_earlier_version
    return {
        "id": f"att_{number:03}",
        "job_id": f"job_{number}",
        "number": 1,
        "state": "ended" if is_over else "running",
        "provider": ran.provider,
        "placements": [{"node_id": "node_1", "prices": ran.prices}]
        if ran.prices
        else [{"node_id": "node_1"}],
        "created_at": BEGIN,
        "started_at": ran.started_at,
        "ended_at": ran.ended_at,
        "ran_s": ran.ran_s if is_over else None,
        "reason": ran.reason if is_over else None,
        "price_per_hour": ran.price,
        "currency": ran.currency,
        "basis": ran.basis,
        "tier": ran.tier,
        "cost": str(ran.cost) if is_over else "0",
        "project": ran.project if own else None,
        "owner": None,
        "gpu": ("A100_80GB" if ran.gpus else "") if own else None,
        "gpus": ran.gpus if own else None,
        "cpus": 1.0 if own else None,
        "gpu_used": ran.used if own and is_over else None,
    }


def made(
    ledger: Ledger,
    by: CostBy = CostBy.PROJECT,
    begin: float = ALL[0],
    end: float = ALL[1],
    rates: Sequence[ExchangeRate] = (),
    hidden: Sequence[str] = (),
    whole_at: Sequence[str] = (),
) -> CostReport:
    known = ExchangeRates("USD", rates)
    exchange = Exchange(known, "USD")
    changes = known.changes(begin, end)
    order = ReportOrder(by, begin, end, BERLIN, hidden, changes)
    rows = ledger.queries.costs(order.period(), in_parts=True, whole_at=whole_at)
    return report(order, rows, lambda _, began: max(NOW - began, 0.0), exchange)


def rate(currency: str, value: str, day: int | None = None) -> ExchangeRate:
    """A rate from the day on that is so many days after the first of the attempts."""
    first = None if day is None else date(2026, 10, 24) + timedelta(day)
    return ExchangeRate(currency=currency, rate=Decimal(value), date=first)


def by_currency(ran: Sequence[Ran]) -> dict[str, Decimal]:
    sums: dict[str, Decimal] = {}
    for each in ran:
        sums[each.currency] = sums.get(each.currency, Decimal(0)) + each.cost
    return sums


def idle_of(ran: Sequence[Ran]) -> Decimal:
    """What of the costs was paid for idle GPUs, each to the last millionth."""
    measured = [
        (micros(each.cost), each.used)
        for each in ran
        if each.used is not None
        and each.ended_at is not None
        and not each.is_of_earlier_version
    ]
    return amount(sum(int(paid * (1.0 - used)) for paid, used in measured))


def waste_of(ran: Sequence[Ran]) -> Decimal:
    wasted = [
        each.cost
        for each in ran
        if each.ended_at is not None
        and each.reason not in (None, "cancelled")
        and not each.saved
    ]
    return sum(wasted, Decimal(0))


def sums_of(found: CostReport) -> dict[str, Decimal]:
    return {line.currency: line.amount for line in found.sums}


@st.composite
def attempts_of_a_lab(draw: st.DrawFn) -> Ran:
    started_at = BEGIN + draw(st.floats(0, SPAN_S - 1))
    is_running = draw(st.booleans())
    ran_s = draw(st.one_of(st.none(), st.floats(0, 3 * 86_400)))
    # Clocks may be set meanwhile, back or forth.
    ended_at = started_at + (ran_s or 0.0) + draw(st.sampled_from([0, 60, -3600, 7200]))
    return Ran(
        started_at,
        None if is_running else ended_at,
        None if is_running else ran_s,
        price=draw(st.sampled_from(["0", "0.526", "2.012", "31.333333", "99999.99"])),
        currency=draw(st.sampled_from(["USD", "CNY", "EUR"])),
        project=draw(st.sampled_from([None, "vision", "language"])),
        provider=draw(st.sampled_from(["local", "slurm"])),
        tier=draw(st.sampled_from(["GPU_SMALL", "GPU_LARGE"])),
        gpus=draw(st.sampled_from([0, 1, 8])),
        reason=draw(st.sampled_from([None, "exit_code", "preempted", "cancelled"])),
        saved=draw(st.booleans()),
        used=draw(st.one_of(st.none(), st.floats(0, 1))),
        basis=draw(st.sampled_from(["list", "list", "share"])),
        is_of_earlier_version=draw(st.booleans()),
    )


@settings(max_examples=examples(60))
@given(
    st.lists(attempts_of_a_lab(), max_size=12),
    st.lists(st.floats(BEGIN - 86_400, NOW + 86_400), max_size=4),
)
def test_the_sum_over_any_cut_is_that_of_the_attempts(
    ledger: Ledger, ran: list[Ran], cuts: list[float]
) -> None:
    write(ledger, ran)
    expected = by_currency(ran)
    for by in CostBy:
        found = made(ledger, by)
        assert sums_of(found) == expected
        for currency, whole in expected.items():
            lines = [line for line in found.items if line.currency == currency]
            assert sum((line.amount for line in lines), Decimal(0)) == whole
        assert sum((line.idle for line in found.items), Decimal(0)) == idle_of(ran)
        assert sum((line.waste for line in found.items), Decimal(0)) == waste_of(ran)
    # In periods that follow one another, and on the days of each.
    bounds = sorted({ALL[0], *cuts, ALL[1]})
    for by in (CostBy.TIER, CostBy.DAY):
        sums = dict.fromkeys(expected, Decimal(0))
        idle = Decimal(0)
        waste = Decimal(0)
        hours = 0.0
        for begin, end in itertools.pairwise(bounds):
            found = made(ledger, by, begin, end)
            for line in found.items:
                sums[line.currency] += line.amount
                idle += line.idle
                waste += line.waste
                hours += line.gpu_hours
        assert sums == expected
        assert (idle, waste) == (idle_of(ran), waste_of(ran))
        assert hours * 3600 == pytest.approx(sum(a.seconds * a.gpus for a in ran))


@settings(max_examples=examples(25))
@given(st.lists(attempts_of_a_lab(), max_size=6), st.floats(BEGIN, NOW))
def test_the_bill_has_what_has_ended(
    ledger: Ledger, ran: list[Ran], cut: float
) -> None:
    """In any periods that follow one another, and in the months of each."""
    write(ledger, ran)
    billed: dict[str, Decimal] = {}
    for begin, end in ((ALL[0], cut), (cut, ALL[1])):
        page = ledger.queries.ended_attempts(begin, end, "")
        for charge in charges(focus.lines(page, begin, end, BERLIN)):
            money = Decimal(charge["BilledCost"])
            currency = charge["BillingCurrency"]
            billed[currency] = billed.get(currency, Decimal(0)) + money
            assert charge["BillingPeriodStart"] <= charge["ChargePeriodStart"]
            assert charge["ChargePeriodEnd"] <= charge["BillingPeriodEnd"]
    assert billed == by_currency([each for each in ran if each.ended_at is not None])


def charges(text: str) -> list[dict[str, str]]:
    import csv

    return list(csv.DictReader((focus.header() + text).splitlines()))


HOUR = Ran(BEGIN, BEGIN + 3600, 3600.0, "2.00")


def test_waste_is_what_left_nothing_behind(ledger: Ledger) -> None:
    write(
        ledger,
        [
            HOUR,
            replace(HOUR, reason="exit_code"),
            replace(HOUR, reason="node_lost", gpus=2),
            replace(HOUR, reason="preempted", saved=True),
            replace(HOUR, reason="cancelled"),
        ],
    )
    (line,) = made(ledger).items
    assert (line.amount, line.waste) == (Decimal(10), Decimal(4))
    assert (line.gpu_hours, line.waste_gpu_hours) == (6.0, 3.0)
    assert line.attempts == 5


@pytest.mark.parametrize("end", [BEGIN + 3600, BEGIN + 1800], ids=["whole", "cut"])
def test_idle_is_what_measured_gpus_did_not_do(ledger: Ledger, end: float) -> None:
    write(ledger, [replace(HOUR, used=0.25, gpus=4), HOUR])
    (line,) = made(ledger, end=end).items
    share = Decimal(str((end - BEGIN) / 3600))
    assert line.idle == Decimal("1.5") * share
    assert line.idle_gpu_hours == 3 * float(share)
    assert line.measured_gpu_hours == 4 * float(share)


@settings(max_examples=examples(25))
@given(
    st.lists(
        st.builds(
            Unused,
            began_at=st.floats(BEGIN, NOW - 1),
            ran_s=st.one_of(st.none(), st.floats(0, 3 * 86_400)),
            reserved_s=st.floats(3 * 86_400, 9 * 86_400),
            price=st.sampled_from(["0", "0.526", "31.333333"]),
            project=st.sampled_from([None, "vision"]),
        ),
        max_size=5,
    ),
    st.lists(st.floats(BEGIN - 86_400, NOW + 86_400), max_size=3),
)
def test_what_was_reserved_and_unused_has_its_own_line_by_whatever_it_is_cut(
    ledger: Ledger, unused: list[Unused], cuts: list[float]
) -> None:
    write(ledger, [HOUR], unused)
    worth = sum((each.worth for each in unused), Decimal(0))
    seconds = sum(each.seconds for each in unused)
    bounds = sorted({ALL[0], *cuts, ALL[1]})
    for by in CostBy:
        found = made(ledger, by)
        assert sum((line.unused for line in found.items), Decimal(0)) == worth
        assert sum((line.unused for line in found.sums), Decimal(0)) == worth
        assert sums_of(found) == {"USD": Decimal(2)}
        assert found.total == Decimal(2)
        parts = [made(ledger, by, *each).sums for each in itertools.pairwise(bounds)]
        lines = [line for sums in parts for line in sums]
        assert sum((line.unused for line in lines), Decimal(0)) == worth
        hours = sum(line.unused_gpu_hours for line in lines)
        assert hours * 3600 == pytest.approx(seconds)


def test_what_still_runs_counts_until_now_and_is_marked(ledger: Ledger) -> None:
    write(ledger, [HOUR, replace(HOUR, started_at=NOW - 1800, ended_at=None)])
    (line,) = made(ledger).items
    assert (line.amount, line.running) == (Decimal(3), Decimal(1))
    assert (line.attempts, line.running_attempts) == (2, 1)


def test_currencies_are_added_only_with_a_rate(ledger: Ledger) -> None:
    write(ledger, [HOUR, replace(HOUR, currency="CNY"), replace(HOUR, currency="EUR")])
    euro = rate("EUR", "1.2")
    without = made(ledger, rates=[euro])
    assert (without.total, without.missing_rates) == (
        None,
        [MissingRate(currency="CNY")],
    )
    both = made(ledger, rates=[euro, rate("CNY", "0.14")])
    assert (both.total, both.missing_rates) == (Decimal("4.68"), [])


rates_of_a_currency = st.lists(
    st.tuples(st.integers(-3, 14), st.decimals("0.000001", 2, places=9)),
    max_size=4,
    unique_by=lambda each: each[0],
)


@settings(max_examples=examples(40))
@given(
    st.lists(attempts_of_a_lab(), max_size=8),
    rates_of_a_currency,
    st.lists(st.floats(BEGIN - 86_400, NOW + 86_400), max_size=2),
)
def test_each_cost_is_converted_by_the_rate_of_its_day(
    ledger: Ledger,
    ran: list[Ran],
    euros: list[tuple[int, Decimal]],
    cuts: list[float],
) -> None:
    """By whatever costs are added up, and in any periods that follow one another."""
    write(ledger, ran)
    rates = [
        rate("CNY", "0.14"),
        rate("EUR", "1.1"),
        *(rate("EUR", str(value), day) for day, value in euros),
    ]
    expected = sum((worth(each, rates) for each in ran), Fraction(0))
    for by in CostBy:
        found = made(ledger, by, rates=rates)
        assert found.total is not None
        assert Fraction(found.total) == expected
        lines = [line.converted for line in found.items if line.converted is not None]
        assert sum(map(Fraction, lines)) == expected
    bounds = sorted({ALL[0], *cuts, ALL[1]})
    for by in (CostBy.TIER, CostBy.DAY, CostBy.WEEK, CostBy.MONTH):
        pieces = itertools.pairwise(bounds)
        totals = [made(ledger, by, *each, rates=rates).total for each in pieces]
        assert sum(Fraction(each or 0) for each in totals) == expected


def worth(ran: Ran, rates: Sequence[ExchangeRate]) -> Fraction:
    """What an attempt cost in dollars, added up day by day."""
    began = ran.started_at or 0.0
    total = micros(ran.cost)
    found = Fraction(0)
    for day in range(day_of(began), day_of(began + ran.seconds) + 1):
        first = day * 86_400.0
        spent = part(total, began, ran.seconds, first, first + 86_400.0)
        found += Fraction(spent, 10**6) * rate_on(day, ran.currency, rates)
    return found


def rate_on(day: int, currency: str, rates: Sequence[ExchangeRate]) -> Fraction:
    if currency == "USD":
        return Fraction(1)
    known = [r for r in rates if r.currency == currency and r.day <= day]
    return Fraction(max(known, key=lambda each: each.day).rate)


def test_before_the_first_rate_there_is_no_sum_and_it_is_said_which(
    ledger: Ledger,
) -> None:
    euros = replace(HOUR, currency="EUR", provider="cloud")
    late = replace(euros, started_at=BEGIN + 5 * 86_400)
    write(ledger, [HOUR, euros, late])
    rates = [rate("EUR", "1.1", 2), rate("EUR", "1.2", 4)]
    found = made(ledger, CostBy.PROVIDER, rates=rates)
    lines = {line.key: line.converted for line in found.items}
    assert lines == {"local": Decimal(2), "cloud": None}
    assert found.total is None
    first = date(2026, 10, 26)
    assert found.missing_rates == [MissingRate(currency="EUR", before=first)]
    assert str(found.missing_rates[0]) == "EUR before 2026-10-26"
    days = {
        line.key: line.converted for line in made(ledger, CostBy.DAY, rates=rates).items
    }
    assert days["2026-10-29"] == Decimal("2.4")


def test_by_month_an_attempt_counts_once_in_each(ledger: Ledger) -> None:
    november = 1_793_487_600.0  # in Berlin
    over = Ran(november - 3600, november + 3600, 7200.0, "2.00")
    days = Ran(november + 3600, november + 172_800, 169_200.0, "2.00")
    write(ledger, [over, days])
    found = made(ledger, CostBy.MONTH)
    assert [(line.key, line.amount, line.attempts) for line in found.items] == [
        ("2026-10", Decimal(2), 1),
        ("2026-11", Decimal(96), 2),
    ]
    assert found.sums[0].attempts == 2


def test_each_week_has_its_part_and_may_be_in_two_years(ledger: Ledger) -> None:
    """From Sunday to Monday, in Berlin; the next is of 2026 until it ends."""
    monday = 1_798_412_400.0  # 2026-12-28 there
    over = Ran(monday - 3600, monday + 3600, 7200.0, "2.00")
    new_year = monday + 4 * 86_400
    days = Ran(new_year - 3600, new_year + 3600, 7200.0, "2.00")
    write(ledger, [over, days])
    found = made(ledger, CostBy.WEEK, monday - 86_400, new_year + 86_400)
    assert [(line.key, line.amount, line.attempts) for line in found.items] == [
        ("2026-W52", Decimal(2), 1),
        ("2026-W53", Decimal(6), 2),
    ]
    assert found.sums[0].attempts == 2


def test_a_clock_that_is_set_back_moves_nothing_into_both_months(
    ledger: Ledger,
) -> None:
    """An attempt that began in November ends, by the clock, in October."""
    november = 1_793_487_600.0  # in Berlin
    write(ledger, [Ran(november + 600, november - 1200, 1800.0, "2.00")])
    october = made(ledger, end=november)
    after = made(ledger, begin=november)
    assert (october.items, after.items[0].amount) == ([], Decimal(1))
    days = made(ledger, CostBy.DAY)
    assert [line.key for line in days.items] == ["2026-11-01"]


def test_a_large_amount_is_exact(ledger: Ledger) -> None:
    """Beyond what a float can hold."""
    long = Ran(BEGIN, BEGIN + 86_400, 86_400.0, "123456789012.345678")
    write(ledger, [long, replace(long, price="0.000001")])
    assert sums_of(made(ledger)) == {"USD": long.cost + Decimal("0.000024")}


@pytest.mark.parametrize("changes", [0, 5, 400], ids="{} changes of rates".format)
def test_the_sums_are_the_same_where_attempts_are_sorted(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    """That is done where to look up each kind of them takes longer."""
    rates = [rate("CNY", f"0.{100 + day}", day) for day in range(-2, changes - 2)]
    long = replace(HOUR, started_at=BEGIN - 80_000, used=0.3, price="0.526")
    ran = [
        replace(long, ran_s=86_400.0, reason="exit_code"),
        replace(long, ran_s=86_400.0, gpus=8),
        replace(long, ran_s=3.5 * 86_400.0, reason="exit_code", project="vision"),
        replace(long, started_at=NOW - 60),
        replace(long, started_at=BEGIN + SPAN_S / 2),
        replace(long, started_at=None, ended_at=BEGIN + 1000, ran_s=None),
        replace(HOUR, is_of_earlier_version=True, currency="CNY"),
    ]
    write(ledger, [*ran, *(replace(each, currency="CNY") for each in ran)])
    cuts = itertools.product(
        (CostBy.DAY, CostBy.MONTH, CostBy.PROJECT),
        ((BEGIN - 40_000, NOW - 30), ALL),
        ((), ("vision",)),
    )
    for by, bounds, hidden in cuts:
        quick = made(ledger, by, *bounds, rates, hidden)
        with monkeypatch.context() as patch:
            patch.setattr(cost_ranges, "FEWEST_A_RANGE", 1000)
            slow = made(ledger, by, *bounds, rates, hidden)
        assert len(quick.items) >= 2
        lines = zip((*quick.items, *quick.sums), (*slow.items, *slow.sums), strict=True)
        for one, other in lines:
            assert one.model_dump() == nearly(other)


def nearly(line: CostLine) -> dict[str, object]:
    """The fields of a line; of floats, the first digits count."""
    return {
        name: pytest.approx(value) if isinstance(value, float) else value
        for name, value in line.model_dump().items()
    }


def test_the_same_in_postgresql(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    opened = Ledger.open(request.getfixturevalue("postgres").ledger())
    ran = [
        replace(HOUR, reason="exit_code"),
        replace(HOUR, used=0.3, currency="CNY", project="vision"),
        replace(HOUR, started_at=BEGIN - 80_000, ran_s=86_400.0, price="0.526"),
        replace(HOUR, is_of_earlier_version=True, gpus=3),
        replace(HOUR, started_at=NOW - 60, ended_at=None),
    ]
    local = Ledger.open(blank_ledger(tmp_path / "ledger.db"))
    try:
        for place in (opened, local):
            write(place, ran)
        for by in CostBy:
            bounds = (BEGIN - 40_000, BEGIN + 1000)
            assert made(opened, by, *bounds) == made(local, by, *bounds)
            assert made(opened, by) == made(local, by)
            rates = [rate("CNY", "0.14"), rate("CNY", "0.15", 1)]
            assert made(opened, by, rates=rates) == made(local, by, rates=rates)
    finally:
        opened.close()
        local.close()


def test_advice_reads_what_the_ledger_has_of_ended_attempts(ledger: Ledger) -> None:
    write(ledger, [HOUR, replace(HOUR, project="secret"), replace(HOUR, used=0.1)])
    usage = {"cpu_s": 1800.0, "peak_mb": 2000.0, "gpu_memory_mb": 5000.0}
    placements = [{"node_id": "", "gpu_uuids": [], "cpus": 1, "offer": "k8s/a"}]
    with ledger.engine.begin() as tx:
        values = {"usage": usage, "placements": placements}
        tx.execute(sa.update(attempts).values(values))
        tx.execute(sa.update(jobs).values(shape={"gpus": 1, "spot": True}))
    page = ledger.queries.ended_uses(BEGIN, NOW, "", ["secret"])
    first, last = (EndedAttempt.of_row(row) for row in page)
    assert (first.job_id, first.program, first.user) == ("job_0", "job-0", "owner")
    assert (first.cost, first.ran_s, first.gpu_used) == (Decimal(2), 3600.0, None)
    assert (first.cores_used, first.memory_gb, first.gpu_memory_gb) == (0.5, 2.0, 5.0)
    assert (first.offer, first.asked_for_spot) == ("k8s/a", True)
    assert (first.has_completed, first.has_saved) == (True, False)
    assert last.gpu_used == 0.1
    assert ledger.queries.ended_uses(BEGIN, NOW, page[-1]["id"], []) == []


def test_what_ran_while_a_rate_changed_is_read_in_sums(ledger: Ledger) -> None:
    """Only what ran over several changes is read one by one."""
    midnight = (day_of(BEGIN) + 1) * 86_400.0
    over_one = replace(HOUR, started_at=midnight - 60, ended_at=midnight + 3540)
    over_two = replace(over_one, ran_s=2 * 86_400.0)
    write(ledger, [replace(HOUR, started_at=midnight + 60), over_one, over_two])
    days = [day_of(midnight), day_of(midnight) + 1]
    order = ReportOrder(CostBy.TIER, *ALL, BERLIN, rate_days=days)
    rows = ledger.queries.costs(order.period())
    assert [attempt.ran_s for attempt in rows.cut] == [2 * 86_400.0]
    assert sum(group.attempts for group in rows.groups) == 3  # one in two sums
    assert sum(group.counted for group in rows.groups) == 1


def test_many_days_are_asked_for_together(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question for each day, each rate and each kind of attempts would be thousands."""
    asked: list[str] = []
    ask = cost_ranges.CostRanges._rows

    def counted(self: Any, statement: str, values: dict[str, Any]) -> Any:
        asked.append(statement)
        return ask(self, statement, values)

    monkeypatch.setattr(cost_ranges.CostRanges, "_rows", counted)
    days = 30
    begin = day_of(BEGIN) * 86_400.0
    # Each runs over a midnight in UTC, where the rate changes.
    over = [begin + day * 86_400.0 - 60 for day in range(1, days)]
    each_day = [replace(HOUR, started_at=at, ended_at=at + 3600) for at in over]
    write(ledger, each_day * cost_ranges.FEWEST_A_RANGE)
    end = begin + days * 86_400.0
    rates = [day_of(begin) + day for day in range(1, days)]
    order = ReportOrder(CostBy.DAY, begin, end, BERLIN, rate_days=rates)
    rows = ledger.queries.costs(order.period())
    assert sum(group.attempts - group.counted for group in rows.groups) == len(
        each_day * cost_ranges.FEWEST_A_RANGE
    )
    assert len(asked) < days


def test_what_rented_machines_cost_is_told_apart(ledger: Ledger) -> None:
    prices = {"machine": "0.9", "disk": "0.1", "address": "0.005"}
    over_midnight = Ran(
        BEGIN, BEGIN + 90_000, 90_000, "1.005", provider="aws", prices=prices
    )
    runs = Ran(NOW - 3600, None, None, "1.005", provider="aws", prices=prices)
    own = Ran(BEGIN, BEGIN + 3600, 3600.0, "1")
    write(ledger, [over_midnight, runs, own])
    lines = {line.key: line for line in made(ledger, CostBy.PROVIDER).items}
    assert lines["local"].parts == {}
    aws = lines["aws"]
    assert list(aws.parts) == ["machine", "disk", "address"]
    assert sum(aws.parts.values()) == aws.amount == over_midnight.cost + runs.cost
    assert aws.parts["disk"] == pytest.approx(Decimal("2.6"), abs=Decimal("1e-5"))

    half = made(ledger, CostBy.PROVIDER, BEGIN, BEGIN + 45_000)
    (cut,) = (line for line in half.items if line.key == "aws")
    assert cut.parts["disk"] == pytest.approx(Decimal("1.25"), abs=Decimal("1e-5"))
    days = made(ledger, CostBy.DAY)
    for name in prices:
        spent = sum(line.parts.get(name, Decimal(0)) for line in days.items)
        assert spent == pytest.approx(aws.parts[name], abs=Decimal("1e-5"))
    (in_all,) = days.sums
    assert sum(in_all.parts.values()) == aws.amount


def test_providers_that_rent_nothing_are_not_looked_through(ledger: Ledger) -> None:
    prices = {"machine": "0.9", "disk": "0.1"}
    write(ledger, [Ran(BEGIN, BEGIN + 60, 60.0, "1", provider="slurm", prices=prices)])
    (line,) = made(ledger, whole_at=["slurm"]).items
    assert (line.amount, line.parts) == (Decimal("0.016667"), {})
