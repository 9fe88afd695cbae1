"""Compares what a cloud bills for a day with what the ledger has: pure functions."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from gpuyard.billing.parts import amount, micros, part, seconds_within
from gpuyard.domain.bills import (
    BillComparison,
    BilledMachine,
    BillMatch,
    BillSum,
    Charge,
    CloudBill,
    CostPart,
)

_SAME = Decimal("0.005")
_HOUR_S = Decimal(3600)
# Clouds round each charge, and begin and end a machine some seconds off.
_SAME_HOURS = Decimal("0.02")
_NO_TAG = "(no tag)"
_UNKNOWN = (
    "no attempt and no node of a pool has this machine; `gpuyard cloud machines` shows"
    " whether it still runs"
)


@dataclass(frozen=True, slots=True)
class PaidMachine:
    """A machine that the ledger has: it costs from `began` for `paid_s` seconds.

    `machine` is the cloud's id of it, `owner` the attempt or the node of a pool. `cost`
    is for all its time, None if its price is not known; `per_hour` says what an hour of
    each part costs.
    """

    machine: str
    owner: str
    job_id: str | None
    began: float
    paid_s: float
    currency: str
    cost: Decimal | None
    per_hour: Mapping[CostPart, Decimal] = field(
        default_factory=dict[CostPart, Decimal]
    )


@dataclass(slots=True)
class _Line:
    """One machine: what is counted for it on the day, and what is billed."""

    machine: str
    owner: str
    paid: PaidMachine | None = None
    counted: Decimal | None = None
    counted_s: float = 0.0
    charges: list[Charge] = field(default_factory=list[Charge])


def compare(
    provider: str,
    bill: CloudBill,
    machines: Iterable[PaidMachine],
    tolerance_percent: float,
) -> BillComparison:
    """The bill beside the machines that the ledger has, each with its part of the
    day.
    """
    lines = _lines(bill, machines)
    items = [
        _compared(line, bill)
        for line in lines
        if line.charges or _was_there(line, bill)
    ]
    items.sort(key=lambda item: (-_weight(item), item.machine))
    sums = _sums(items)
    return BillComparison(
        provider=provider,
        day=bill.day,
        timezone=bill.timezone,
        begin=bill.begin,
        end=bill.end,
        estimated=bill.estimated,
        differs=_differs(items, sums, tolerance_percent),
        tolerance_percent=tolerance_percent,
        items=items,
        sums=sums,
    )


def _lines(bill: CloudBill, machines: Iterable[PaidMachine]) -> Sequence[_Line]:
    """A line for each machine of either side."""
    lines: list[_Line] = []
    by_name: dict[str, _Line] = {}
    for paid in machines:
        line = _counted(paid, bill)
        lines.append(line)
        for name in filter(None, (paid.machine, paid.owner)):
            by_name[name] = line
    for charge in bill.charges:
        names = [name for name in (charge.machine, charge.owner) if name] or [_NO_TAG]
        line = next((by_name[name] for name in names if name in by_name), None)
        if line is None:
            line = _Line(charge.machine, charge.owner)
            lines.append(line)
            by_name[names[0]] = line
        line.charges.append(charge)
    return lines


def _was_there(line: _Line, bill: CloudBill) -> bool:
    """Whether the ledger has its machine on the day."""
    paid = line.paid
    if paid is None:
        return False
    return line.counted_s > 0 or bill.begin <= paid.began < bill.end


def _counted(paid: PaidMachine, bill: CloudBill) -> _Line:
    """What the machine cost on the day. Where that is nothing, it may still be billed:
    a machine ends a while after its attempt.
    """
    seconds = seconds_within(paid.began, paid.paid_s, bill.begin, bill.end)
    line = _Line(paid.machine, paid.owner, paid, counted_s=seconds)
    if paid.cost is not None:
        total = micros(paid.cost)
        spent = part(total, paid.began, paid.paid_s, bill.begin, bill.end)
        line.counted = amount(spent)
    return line


def _compared(line: _Line, bill: CloudBill) -> BilledMachine:
    paid = line.paid
    currencies = {charge.currency for charge in line.charges}
    if paid and paid.currency:
        currencies.add(paid.currency)
    billed = sum((charge.amount for charge in line.charges), Decimal(0))
    difference: Decimal | None = None
    if len(currencies) == 1:
        difference = billed - (line.counted or Decimal(0))
    match = _match(line, difference)
    parts: defaultdict[CostPart, Decimal] = defaultdict(Decimal)
    for charge in line.charges:
        parts[charge.part] += charge.amount
    return BilledMachine(
        machine=line.machine or _NO_TAG,
        owner=line.owner,
        job_id=paid.job_id if paid else None,
        match=match,
        currency=" and ".join(sorted(currencies)),
        counted=line.counted,
        billed=billed if line.charges else None,
        difference=difference,
        parts=dict(parts),
        why=_why(match, line, parts, bill),
    )


def _match(line: _Line, difference: Decimal | None) -> BillMatch:
    if line.paid is None:
        return BillMatch.UNKNOWN
    if not line.charges and (line.counted is None or line.counted >= _SAME):
        return BillMatch.NOT_BILLED
    is_known = difference is not None and line.counted is not None
    if is_known and abs(difference or 0) < _SAME:
        return BillMatch.SAME
    return BillMatch.DIFFERENT


# --- why ---


def _why(
    match: BillMatch, line: _Line, parts: Mapping[CostPart, Decimal], bill: CloudBill
) -> str:
    match match:
        case BillMatch.SAME:
            return ""
        case BillMatch.UNKNOWN:
            return _UNKNOWN if line.machine or line.owner else bill.if_missing
        case BillMatch.NOT_BILLED:
            return bill.if_missing
        case BillMatch.DIFFERENT:
            return "; ".join(_reasons(line, parts)) or "the price differs"


def _reasons(line: _Line, parts: Mapping[CostPart, Decimal]) -> list[str]:
    """Why the machine was billed otherwise than it was counted."""
    paid = line.paid
    if paid is None:
        return []
    for charge in line.charges:
        if paid.currency and charge.currency != paid.currency:
            return [f"billed in {charge.currency}, counted in {paid.currency}"]
    if line.counted is None:
        return ["its price was not known, so nothing was counted"]
    found: list[str] = []
    if paid.per_hour:
        found += [
            f"{name} is billed ({spent:.2f}) and was not counted"
            for name, spent in parts.items()
            if spent >= _SAME and not paid.per_hour.get(name)
        ]
        found += [
            f"{name} was counted ({per_hour:.4f} an hour) and is not billed"
            for name, per_hour in paid.per_hour.items()
            if per_hour and name not in parts
        ]
    found += _of_machine(line, paid, parts.get(CostPart.MACHINE, Decimal(0)))
    return found


def _of_machine(line: _Line, paid: PaidMachine, billed: Decimal) -> list[str]:
    """What the time and the price of the machine itself say."""
    known = [charge.hours for charge in line.charges if charge.hours is not None]
    hours = sum(known, Decimal(0))
    counted = Decimal(str(line.counted_s)) / _HOUR_S
    found: list[str] = []
    if known and abs(hours - counted) > _SAME_HOURS:
        found.append(f"billed for {hours:.2f} h, counted {counted:.2f} h")
    time = hours if known else counted
    ours = paid.per_hour.get(CostPart.MACHINE)
    if ours is None or not time or not billed:
        return found
    theirs = billed / time
    # A hundredth of the price: what rounding makes of a short time.
    if abs(theirs - ours) > ours / 100:
        found.append(
            f"billed {theirs:.4f} an hour, counted {ours:.4f}: a discount, or another"
            " price since the offer"
        )
    return found


# --- sums ---


def _weight(item: BilledMachine) -> Decimal:
    """By how much it differs; all of it, where that is not known."""
    if item.difference is not None:
        return abs(item.difference)
    return max(item.billed or Decimal(0), item.counted or Decimal(0))


def _sums(items: Iterable[BilledMachine]) -> list[BillSum]:
    """Of each currency; what is billed in another currency than it was counted in is in
    none.
    """
    counted: defaultdict[str, Decimal] = defaultdict(Decimal)
    billed: defaultdict[str, Decimal] = defaultdict(Decimal)
    for item in items:
        if item.difference is not None:
            counted[item.currency] += item.counted or 0
            billed[item.currency] += item.billed or 0
    return [
        BillSum(
            currency=currency,
            counted=counted[currency],
            billed=billed[currency],
            difference=billed[currency] - counted[currency],
        )
        for currency in sorted(counted)
    ]


def _differs(
    items: Iterable[BilledMachine], sums: Iterable[BillSum], tolerance_percent: float
) -> bool:
    unknown = any(item.match is BillMatch.UNKNOWN for item in items)
    mixed = any(item.difference is None for item in items)
    tolerance = Decimal(str(tolerance_percent)) / 100
    beyond = any(
        abs(one.difference) >= _SAME
        and abs(one.difference) > tolerance * max(abs(one.counted), abs(one.billed))
        for one in sums
    )
    return unknown or mixed or beyond
