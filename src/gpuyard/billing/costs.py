"""Reports of costs: from what the ledger says of attempts to lines by user, project and
so on.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from gpuyard.billing.meter import SHARE, cost
from gpuyard.billing.parts import amount, micros, part, seconds_within
from gpuyard.billing.periods import Stretch, day_name, day_pieces, stretches
from gpuyard.domain.cost_keys import INSTANCE_OWNER, NO_PROJECT, CostBy
from gpuyard.domain.costs import CostLine, CostReport
from gpuyard.ledger.queries.cost_rows import (
    CostDay,
    CostGroup,
    CostPeriod,
    CutAttempt,
)
from gpuyard.ledger.queries.costs import CostRows, gpu_of_shape, gpus_and_cpus

NO_GPU = "no GPU"
ANY_GPU = "GPU of any kind"
_HOUR_S = 3600.0
RunSeconds = Callable[[str, float], float]
"""For how many seconds the attempt of this id, which began at this time, has run."""


@dataclass(frozen=True, slots=True)
class ReportOrder:
    """What somebody wants to see: costs `by` something, from `begin` until before
    `end`, with the days of `zone`, without what is of `hidden` projects.
    """

    by: CostBy
    begin: float
    end: float
    zone: ZoneInfo
    hidden: Sequence[str] = ()

    @property
    def offsets(self) -> list[Stretch]:
        """When local clocks are how far ahead of UTC; empty unless it is by day."""
        if self.by is not CostBy.DAY:
            return []
        return stretches(self.begin, self.end, self.zone)

    def period(self) -> CostPeriod:
        """The same for the ledger."""
        known = self.offsets
        offsets = [(each.begin, each.offset_s) for each in known]
        days = day_pieces(self.begin, self.end, known) if known else []
        return CostPeriod(
            self.begin,
            self.end,
            offsets,
            [CostDay(*each) for each in days],
            self.hidden,
        )


@dataclass(slots=True)
class _Sum:
    """What is added up: amounts in millionths, times in seconds."""

    micros: int = 0
    running: int = 0
    waste: int = 0
    idle: int = 0
    attempts: int = 0
    running_attempts: int = 0
    gpu_s: float = 0.0
    cpu_s: float = 0.0
    waste_gpu_s: float = 0.0
    idle_gpu_s: float = 0.0
    measured_gpu_s: float = 0.0

    def line(self, key: str, currency: str) -> CostLine:
        return CostLine(
            key=key,
            currency=currency,
            amount=amount(self.micros),
            running=amount(self.running),
            waste=amount(self.waste),
            idle=amount(self.idle),
            attempts=self.attempts,
            running_attempts=self.running_attempts,
            gpu_hours=self.gpu_s / _HOUR_S,
            cpu_hours=self.cpu_s / _HOUR_S,
            waste_gpu_hours=self.waste_gpu_s / _HOUR_S,
            idle_gpu_hours=self.idle_gpu_s / _HOUR_S,
            measured_gpu_hours=self.measured_gpu_s / _HOUR_S,
        )


@dataclass(slots=True)
class _Sums:
    """The sums by key and currency, and those of each currency."""

    by: CostBy
    by_key: dict[tuple[str, str], _Sum] = field(
        default_factory=dict[tuple[str, str], _Sum]
    )
    by_currency: dict[str, _Sum] = field(default_factory=dict[str, _Sum])

    def of(self, key: str, currency: str) -> tuple[_Sum, _Sum]:
        """The sum of the key and that of the currency."""
        own = self.by_key.setdefault((key, currency), _Sum())
        return own, self.by_currency.setdefault(currency, _Sum())


def report(
    order: ReportOrder,
    rows: CostRows,
    run_seconds: RunSeconds,
    currency: str,
    rate_of: Callable[[str], float | None],
) -> CostReport:
    """The report that `order` asks for, of `rows` from the ledger. `rate_of` says what
    one unit of another currency is worth in `currency`; None if that is not known.
    """
    sums = _Sums(order.by)
    offsets = order.offsets
    for group in rows.groups:
        _add_group(sums, group)
    live = list(running_attempts(rows.live, run_seconds))
    for attempt in rows.cut:
        _add_attempt(sums, order, offsets, attempt, is_running=False)
    for attempt in live:
        _add_attempt(sums, order, offsets, attempt, is_running=True)
    items = [
        each.line(key, currency)
        for (key, currency), each in sorted(sums.by_key.items())
    ]
    if order.by is not CostBy.DAY:
        items.sort(key=lambda line: (line.currency, -line.amount, line.key))
    lines = [each.line("", key) for key, each in sorted(sums.by_currency.items())]
    missing = [line.currency for line in lines if rate_of(line.currency) is None]
    return CostReport(
        by=order.by,
        begin=order.begin,
        end=order.end,
        timezone=order.zone.key,
        items=items,
        sums=lines,
        currency=currency,
        total=None if missing else in_currency(lines, rate_of),
        missing_rates=missing,
    )


def in_currency(
    lines: Iterable[CostLine], rate_of: Callable[[str], float | None]
) -> Decimal:
    """The sum of the lines by these rates, of which none is missing."""
    total = sum(
        (line.amount * Decimal(str(rate_of(line.currency))) for line in lines),
        Decimal(0),
    )
    return total.quantize(Decimal("0.000001"))


def running_attempts(
    rows: Iterable[Mapping[str, Any]], run_seconds: RunSeconds
) -> Iterable[CutAttempt]:
    """The attempts that have begun and not ended, with their cost so far."""
    for row in rows:
        began = row["started_at"]
        ran_s = run_seconds(row["id"], began)
        spent = Decimal(0)
        if row["basis"] != SHARE:
            spent = cost(Decimal(row["price_per_hour"] or 0), ran_s)
        gpus, cpus = gpus_and_cpus(row["shape"])
        gpu = row["gpu"]
        yield CutAttempt(
            row["currency"],
            row["project"],
            row["owner"],
            row["provider"],
            row["tier"],
            gpu_of_shape(row["shape"]) if gpu is None else gpu,
            micros(spent),
            began,
            ran_s,
            gpus,
            cpus,
            is_wasted=False,
            gpu_used=None,
        )


def _add_group(sums: _Sums, group: CostGroup) -> None:
    # PostgreSQL gives decimals for some of these.
    day = "" if group.day is None else day_name(group.day)
    own, of_currency = sums.of(day or _key(sums.by, group), group.currency)
    # An attempt counts once in the sum of its currency, and on each of its days.
    of_currency.attempts -= group.counted
    for each in (own, of_currency):
        each.micros += int(group.micros)
        each.attempts += group.attempts
        each.gpu_s += float(group.gpu_s)
        each.cpu_s += float(group.cpu_s)
        each.waste += int(group.waste)
        each.waste_gpu_s += float(group.waste_gpu_s)
        each.idle += int(group.idle)
        each.idle_gpu_s += float(group.idle_gpu_s)
        each.measured_gpu_s += float(group.measured_gpu_s)


def _add_attempt(
    sums: _Sums,
    order: ReportOrder,
    offsets: Sequence[Stretch],
    attempt: CutAttempt,
    *,
    is_running: bool,
) -> None:
    """Add the part of an attempt that is in the period, or its parts by day."""
    begin = max(order.begin, attempt.began)
    end = min(order.end, attempt.began + attempt.ran_s)
    if end < begin or not order.begin <= begin < order.end:
        return
    pieces = [(_key(order.by, attempt), order.begin, order.end)]
    if offsets:
        # One that has only just begun has no second to be cut, but counts.
        days = day_pieces(begin, max(end, begin + 1e-6), list(offsets))
        pieces = [(day_name(number), a, b) for number, a, b in days]
    first = True
    for key, from_, until in pieces:
        own, of_currency = sums.of(key, attempt.currency)
        for each in (own, of_currency):
            _add_part(each, attempt, from_, until, is_running=is_running)
        # It counts once in the sum of its currency, and on each of its days.
        own.attempts += 1
        own.running_attempts += is_running
        if first:
            of_currency.attempts += 1
            of_currency.running_attempts += is_running
        first = False


def _add_part(
    each: _Sum, attempt: CutAttempt, begin: float, end: float, *, is_running: bool
) -> None:
    spent = part(attempt.micros, attempt.began, attempt.ran_s, begin, end)
    seconds = seconds_within(attempt.began, attempt.ran_s, begin, end)
    gpu_s = seconds * attempt.gpus
    each.micros += spent
    each.gpu_s += gpu_s
    each.cpu_s += seconds * attempt.cpus
    if is_running:
        each.running += spent
    if attempt.is_wasted:
        each.waste += spent
        each.waste_gpu_s += gpu_s
    if attempt.gpu_used is not None:
        each.idle += int(spent * (1.0 - attempt.gpu_used))
        each.idle_gpu_s += gpu_s * (1.0 - attempt.gpu_used)
        each.measured_gpu_s += gpu_s


def _key(by: CostBy, row: CostGroup | CutAttempt) -> str:
    match by:
        case CostBy.USER:
            return row.owner or INSTANCE_OWNER
        case CostBy.PROJECT:
            return row.project or NO_PROJECT
        case CostBy.TIER:
            return row.tier or "(none)"
        case CostBy.PROVIDER:
            return row.provider
        case CostBy.GPU:
            return ANY_GPU if row.gpu is None else row.gpu or NO_GPU
        case CostBy.DAY:
            return ""
