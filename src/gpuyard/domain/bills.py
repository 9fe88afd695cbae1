"""What a cloud bills for a day, and how that compares with what gpuyard has counted."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum

from gpuyard.domain.strict_model import StrictModel

MOST_STORED = 500
"""So many machines of a comparison are kept."""


class CostPart(StrEnum):
    """What a cloud charges for, beside a machine itself."""

    MACHINE = "machine"
    DISK = "disk"
    ADDRESS = "address"
    """A public address."""
    TRAFFIC = "traffic"
    """What machines send to the internet."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Charge:
    """A line of a cloud's bill.

    `machine` is the cloud's id, `owner` the attempt or the node of a pool for which it
    was rented; one of them may be empty. `hours` is how long a machine was billed, None
    if the bill does not say.
    """

    machine: str
    owner: str
    part: CostPart
    amount: Decimal
    currency: str
    hours: Decimal | None = None


@dataclass(frozen=True, slots=True)
class CloudBill:
    """What a cloud bills for a `day`, which lasts from `begin` until before `end` (UTC
    seconds) in its time zone. `estimated`: it may still change. `if_missing` says why
    it may lack machines.
    """

    day: date
    timezone: str
    begin: float
    end: float
    charges: Sequence[Charge]
    estimated: bool
    if_missing: str


class BillMatch(StrEnum):
    """How a line of a bill and what was counted agree."""

    SAME = "same"
    """They differ by less than half a cent."""
    DIFFERENT = "different"
    UNKNOWN = "unknown"
    """It is billed, and no attempt and no node of a pool has it."""
    NOT_BILLED = "not_billed"
    """It was counted, and the bill lacks it."""


class BilledMachine(StrictModel):
    """A machine in a bill, and in the ledger.

    `counted` is what the ledger has for the day, `billed` what the cloud charges, None
    where one of them has nothing; `difference` is billed minus counted, None in
    different currencies. `parts` says for what the cloud charges. `why`: why they
    differ, as far as that can be told; empty if they do not.
    """

    machine: str
    owner: str
    job_id: str | None = None
    match: BillMatch
    currency: str
    counted: Decimal | None
    billed: Decimal | None
    difference: Decimal | None
    parts: dict[CostPart, Decimal]
    why: str


class BillSum(StrictModel):
    """The sums of one currency."""

    currency: str
    counted: Decimal
    billed: Decimal
    difference: Decimal


class BillComparison(StrictModel):
    """The bill of a provider's cloud for a `day` of the time zone of the bill, beside
    what the ledger has.

    `estimated`: the cloud may still change it. `differs`: a machine is unknown, or the
    machines differ by more than `tolerance_percent` together. `items` has each machine,
    the largest difference first.
    """

    provider: str
    day: date
    timezone: str
    begin: float
    end: float
    estimated: bool
    differs: bool
    tolerance_percent: float
    items: list[BilledMachine]
    sums: list[BillSum]


class StoredBill(StrictModel):
    """The last comparison of a provider's bill, at `compared_at` (UTC seconds); None
    where there was none. Its `items` are those that differ, of `machines` in all, and
    at most `MOST_STORED` of them. `daily`: it is compared once a day.
    """

    provider: str
    daily: bool
    compared_at: float | None = None
    machines: int = 0
    different: int = 0
    comparison: BillComparison | None = None
