"""Reports of costs: from what the ledger says of attempts to lines by user, project and
so on.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from gpuyard.billing.exchange import Exchange, exact, rate_pieces
from gpuyard.billing.meter import SHARE, cost
from gpuyard.billing.parts import amount, micros, part, seconds_within
from gpuyard.billing.periods import (
    Stretch,
    day_name,
    day_pieces,
    stretches,
    week_name,
)
from gpuyard.domain.cost_keys import INSTANCE_OWNER, NO_PROJECT, NOBODY, CostBy
from gpuyard.domain.costs import CostLine, CostReport
from gpuyard.domain.exchange_rates import day_of
from gpuyard.domain.price_parts import amounts
from gpuyard.ledger.queries.cost_rows import (
    CostGroup,
    CostPeriod,
    CostPiece,
    CutAttempt,
)
from gpuyard.ledger.queries.costs import (
    CostRows,
    gpu_of_shape,
    gpus_and_cpus,
    recorded_prices,
)

NO_GPU = "no GPU"
ANY_GPU = "GPU of any kind"
_HOUR_S = 3600.0
RunSeconds = Callable[[str, float], float]
"""For how many seconds the attempt of this id, which began at this time, has run."""


@dataclass(frozen=True, slots=True)
class ReportOrder:
    """What somebody wants to see: costs `by` something, from `begin` until before
    `end`, with the days of `zone`, without what is of `hidden` projects. On the
    `rate_days` in there (days in UTC), rates change.
    """

    by: CostBy
    begin: float
    end: float
    zone: ZoneInfo
    hidden: Sequence[str] = ()
    rate_days: Sequence[int] = ()

    @property
    def offsets(self) -> list[Stretch]:
        """When local clocks are how far ahead of UTC; empty unless it is by time."""
        if not self.by.is_time:
            return []
        return stretches(self.begin, self.end, self.zone)

    def period(self) -> CostPeriod:
        """The same for the ledger."""
        known = self.offsets
        offsets = [(each.begin, each.offset_s) for each in known]
        return CostPeriod(
            self.begin,
            self.end,
            list(self._pieces(known)),
            offsets,
            self.rate_days,
            self.hidden,
        )

    def _pieces(self, known: list[Stretch]) -> Iterator[CostPiece]:
        days: list[tuple[int | None, float, float]] = [(None, self.begin, self.end)]
        if known:
            days = [*day_pieces(self.begin, self.end, known)]
        for number, since, until in days:
            for each in rate_pieces(since, until, until, self.rate_days):
                yield CostPiece(number, *each)


@dataclass(slots=True)
class _Sum:
    """What is added up: amounts in millionths, times in seconds. `by_day` has the
    amounts by a day in UTC that has their rate, `parts` what of them was paid for which
    part of rented machines.
    """

    by_day: dict[int, int] = field(default_factory=dict[int, int])
    parts: dict[str, Decimal] = field(default_factory=dict[str, Decimal])
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
    unused: int = 0
    unused_gpu_s: float = 0.0

    def add(self, day: int, micros: int) -> None:
        self.by_day[day] = self.by_day.get(day, 0) + micros

    def add_parts(self, parts: Mapping[str, Decimal]) -> None:
        for name, spent in parts.items():
            self.parts[name] = self.parts.get(name, Decimal(0)) + spent

    def include(self, other: "_Sum") -> None:
        """Add another sum."""
        for day, spent in other.by_day.items():
            self.add(day, spent)
        self.add_parts(other.parts)
        for name in _ADDED_UP:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def line(self, key: str, currency: str, exchange: Exchange) -> CostLine:
        worth = exchange.sum(currency, self.by_day.items())
        return CostLine(
            key=key,
            currency=currency,
            amount=amount(sum(self.by_day.values())),
            converted=None if worth is None else exact(worth),
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
            unused=amount(self.unused),
            unused_gpu_hours=self.unused_gpu_s / _HOUR_S,
            parts=self.parts,
        )


_ADDED_UP = [each.name for each in fields(_Sum) if each.name not in ("by_day", "parts")]


@dataclass(slots=True)
class _Sums:
    """The sums by key and currency. An attempt counts once for each key. So of each
    currency, some were `repeated`: of all attempts, and of the running ones.
    """

    by: CostBy
    by_key: dict[tuple[str, str], _Sum] = field(
        default_factory=dict[tuple[str, str], _Sum]
    )
    repeated: Counter[str] = field(default_factory=Counter[str])
    repeated_running: Counter[str] = field(default_factory=Counter[str])

    def of(self, key: str, currency: str) -> _Sum:
        own = self.by_key.get((key, currency))
        if own is None:
            own = self.by_key[key, currency] = _Sum()
        return own

    def of_currencies(self) -> dict[str, _Sum]:
        """The sum of each currency, in which each attempt counts once."""
        found: dict[str, _Sum] = {}
        for (_, currency), each in self.by_key.items():
            found.setdefault(currency, _Sum()).include(each)
        for currency, each in found.items():
            each.attempts -= self.repeated[currency]
            each.running_attempts -= self.repeated_running[currency]
        return found


def report(
    order: ReportOrder, rows: CostRows, run_seconds: RunSeconds, exchange: Exchange
) -> CostReport:
    """The report that `order` asks for, of `rows` from the ledger, with sums in the
    wanted currency of `exchange`.
    """
    sums = _Sums(order.by)
    for group in rows.groups:
        _add_group(sums, order, group)
    cuts = _Cuts(order)
    for attempt in rows.cut:
        _add_attempt(sums, cuts, attempt, is_running=False)
    for attempt in running_attempts(rows.live, run_seconds):
        _add_attempt(sums, cuts, attempt, is_running=True)
    for attempt in rows.in_parts:
        _add_parts(sums, cuts, attempt)
    for gpu in _unused_gpus(rows.unused, run_seconds):
        _add_unused(sums, cuts, gpu)
    items = [
        each.line(key, currency, exchange)
        for (key, currency), each in sorted(sums.by_key.items())
    ]
    if not order.by.is_time:
        items.sort(key=lambda line: (line.currency, -line.amount, line.key))
    lines = [
        each.line("", currency, exchange)
        for currency, each in sorted(sums.of_currencies().items())
    ]
    known = [line.converted for line in lines if line.converted is not None]
    unknown = [line.currency for line in lines if line.converted is None]
    return CostReport(
        by=order.by,
        begin=order.begin,
        end=order.end,
        timezone=order.zone.key,
        items=items,
        sums=lines,
        currency=exchange.wanted,
        total=None if unknown else sum(known, Decimal(0)),
        missing_rates=[exchange.missing(currency) for currency in unknown],
    )


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
            prices=recorded_prices(row["placements"]),
        )


def _add_group(sums: _Sums, order: ReportOrder, group: CostGroup) -> None:
    # PostgreSQL gives decimals for some of these.
    key = _key(sums.by, group)
    before = key
    if group.day is not None:
        key = _time_key(sums.by, int(group.day))
    if group.day_before is not None:
        before = _time_key(sums.by, group.day_before)
    also_before = group.counted if key == before else 0
    own = sums.of(key, group.currency)
    own.attempts += group.attempts - also_before
    sums.repeated[group.currency] += group.counted - also_before
    rate_day = day_of(order.begin) if group.rate_day is None else int(group.rate_day)
    own.add(rate_day, int(group.micros))
    own.gpu_s += float(group.gpu_s)
    own.cpu_s += float(group.cpu_s)
    own.waste += int(group.waste)
    own.waste_gpu_s += float(group.waste_gpu_s)
    own.idle += int(group.idle)
    own.idle_gpu_s += float(group.idle_gpu_s)
    own.measured_gpu_s += float(group.measured_gpu_s)


class _Cuts:
    """Where a report cuts attempts: at its begin and its end, at midnights if it is by
    time, and where the rate of a currency may change.
    """

    def __init__(self, order: ReportOrder) -> None:
        self.order = order
        self._offsets = order.offsets

    def pieces(self, attempt: CutAttempt) -> Iterator[tuple[str, int, float, float]]:
        """The key, the day of the rate, the begin and the end of each piece."""
        order = self.order
        begin = max(order.begin, attempt.began)
        end = min(order.end, attempt.began + attempt.ran_s)
        if end < begin or not order.begin <= begin < order.end:
            return
        for key, since, until in self._by_key(attempt, begin, end):
            first = max(since, begin)
            for piece in rate_pieces(first, until, end, order.rate_days):
                yield key, *piece

    def _by_key(
        self, attempt: CutAttempt, begin: float, end: float
    ) -> Iterator[tuple[str, float, float]]:
        if not self._offsets:
            yield _key(self.order.by, attempt), self.order.begin, self.order.end
            return
        # One that has only just begun has no second to be cut, but counts.
        some = max(end, begin + 1e-6)
        for number, since, until in day_pieces(begin, some, self._offsets):
            yield _time_key(self.order.by, number), since, until


def _add_attempt(
    sums: _Sums, cuts: _Cuts, attempt: CutAttempt, *, is_running: bool
) -> None:
    """Add the pieces of an attempt that are in the period."""
    if attempt.prices:
        _add_parts(sums, cuts, attempt)
    keys: set[str] = set()
    for key, day, begin, end in cuts.pieces(attempt):
        own = sums.of(key, attempt.currency)
        if key not in keys:
            own.attempts += 1
            own.running_attempts += is_running
            sums.repeated[attempt.currency] += bool(keys)
            sums.repeated_running[attempt.currency] += is_running and bool(keys)
        keys.add(key)
        _add_part(own, attempt, day, begin, end, is_running=is_running)


def _add_parts(sums: _Sums, cuts: _Cuts, attempt: CutAttempt) -> None:
    """Add what of an attempt, whose cost is in the sums, was paid for which part."""
    for key, _, begin, end in cuts.pieces(attempt):
        spent = part(attempt.micros, attempt.began, attempt.ran_s, begin, end)
        own = sums.of(key, attempt.currency)
        own.add_parts(amounts(amount(spent), attempt.prices))


def _unused_gpus(
    rows: Iterable[Mapping[str, Any]], run_seconds: RunSeconds
) -> Iterator[CutAttempt]:
    """Each time in which a reserved GPU was used by nobody, as if it was an attempt."""
    for row in rows:
        began = row["began_at"]
        unused_s = row["ran_s"]
        worth = row["cost"]
        if unused_s is None:
            until_end_s = row["reserved_until"] - began
            unused_s = max(min(run_seconds(row["id"], began), until_end_s), 0.0)
            worth = cost(Decimal(row["price_per_hour"]), unused_s)
        yield CutAttempt(
            row["currency"],
            row["project"],
            row["owner"] or NOBODY,
            row["provider"],
            row["tier"],
            row["gpu"],
            micros(Decimal(worth)),
            began,
            unused_s,
            gpus=1,
            cpus=0,
            is_wasted=False,
            gpu_used=None,
        )


def _add_unused(sums: _Sums, cuts: _Cuts, gpu: CutAttempt) -> None:
    """Add the pieces that are in the period of a time in which a GPU was unused."""
    for key, _, begin, end in cuts.pieces(gpu):
        own = sums.of(key, gpu.currency)
        own.unused += part(gpu.micros, gpu.began, gpu.ran_s, begin, end)
        own.unused_gpu_s += seconds_within(gpu.began, gpu.ran_s, begin, end)


def _add_part(
    each: _Sum,
    attempt: CutAttempt,
    day: int,
    begin: float,
    end: float,
    *,
    is_running: bool,
) -> None:
    spent = part(attempt.micros, attempt.began, attempt.ran_s, begin, end)
    seconds = seconds_within(attempt.began, attempt.ran_s, begin, end)
    gpu_s = seconds * attempt.gpus
    each.add(day, spent)
    each.gpu_s += gpu_s
    each.cpu_s += seconds * attempt.cpus
    if is_running:
        each.running += spent
    if attempt.is_wasted:
        each.waste += spent
        each.waste_gpu_s += gpu_s
    if attempt.gpu_used is not None:
        idle = int(attempt.micros * (1.0 - attempt.gpu_used))
        each.idle += part(idle, attempt.began, attempt.ran_s, begin, end)
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
        case CostBy.DAY | CostBy.WEEK | CostBy.MONTH:
            return ""


def _time_key(by: CostBy, day: int) -> str:
    """The day, week or month of a numbered day, such as 2026-W48 or 2026-11."""
    if by is CostBy.WEEK:
        return week_name(day)
    name = day_name(day)
    return name[:7] if by is CostBy.MONTH else name
