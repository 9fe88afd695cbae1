"""A cloud's bill beside the ledger: every difference is listed, with what explains it."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest

from gpuyard.billing.bills import PaidMachine, compare
from gpuyard.domain.bills import (
    BillComparison,
    BilledMachine,
    BillMatch,
    Charge,
    CloudBill,
    CostPart,
)

DAY_S = 86_400.0
HOUR_S = 3600.0
MACHINE = CostPart.MACHINE
# Two hours at 1 USD an hour, an hour after midnight.
PAID = PaidMachine("i-1", "att_1", "job_1", HOUR_S, 2 * HOUR_S, "USD", Decimal(2))
PARTS = {MACHINE: Decimal("0.9"), CostPart.DISK: Decimal("0.1")}


def charge(amount: str = "2", part: CostPart = MACHINE, **more: str) -> Charge:
    hours = Decimal(more.get("hours", "2")) if part is MACHINE else None
    return Charge(
        more.get("machine", "i-1"),
        more.get("owner", "att_1"),
        part,
        Decimal(amount),
        more.get("currency", "USD"),
        hours,
    )


def compared(
    charges: Iterable[Charge], *machines: PaidMachine, percent: float = 5.0
) -> BillComparison:
    bill = CloudBill(
        date(1970, 1, 1), "UTC", 0.0, DAY_S, list(charges), True, "tags are off"
    )
    return compare("aws", bill, machines, percent)


def only(found: BillComparison) -> BilledMachine:
    (item,) = found.items
    return item


def test_what_agrees_is_the_same() -> None:
    found = compared([charge("1.8"), charge("0.2", CostPart.DISK)], PAID)
    item = only(found)
    assert (item.match, item.why, item.difference) == (BillMatch.SAME, "", 0)
    assert item.parts == {MACHINE: Decimal("1.8"), CostPart.DISK: Decimal("0.2")}
    assert not found.differs
    assert (found.sums[0].counted, found.sums[0].billed) == (2, 2)


@pytest.mark.parametrize("name", ["machine", "owner"])
def test_a_machine_is_known_by_its_id_or_by_its_tag(name: str) -> None:
    assert only(compared([charge(**{name: ""})], PAID)).match is BillMatch.SAME


def test_only_the_part_of_the_day_counts() -> None:
    over_midnight = replace(PAID, began=DAY_S - HOUR_S)
    item = only(compared([charge("1", hours="1")], over_midnight))
    assert (item.counted, item.match) == (1, BillMatch.SAME)
    assert compared([], replace(PAID, began=DAY_S)).items == []
    assert compared([], replace(PAID, began=-3 * HOUR_S)).items == []


def test_a_machine_that_ended_after_its_attempt_is_known_on_the_next_day() -> None:
    before = replace(PAID, began=-2 * HOUR_S)
    item = only(compared([charge("0.1", hours="0.1")], before))
    assert (item.match, item.counted) == (BillMatch.DIFFERENT, 0)
    assert item.why == "billed for 0.10 h, counted 0.00 h"


def test_each_unknown_machine_is_listed_beside_what_has_no_tag() -> None:
    nameless = charge(machine="", owner="")
    found = compared([nameless, nameless, charge(machine="i-7", owner="")], PAID)
    billed = {item.machine: item.billed for item in found.items if item.billed}
    assert billed == {"(no tag)": 4, "i-7": 2}


def test_what_only_one_side_has_is_listed() -> None:
    found = compared([charge(machine="i-2", owner="att_2")], PAID)
    by_machine = {item.machine: item for item in found.items}
    unknown = by_machine["i-2"]
    assert (unknown.match, unknown.counted) == (BillMatch.UNKNOWN, None)
    assert "no attempt" in unknown.why
    missing = by_machine["i-1"]
    assert (missing.match, missing.billed) == (BillMatch.NOT_BILLED, None)
    assert (missing.why, missing.difference) == ("tags are off", -2)
    assert found.differs, "though the sums agree"


def test_charges_without_any_tag_are_one_line() -> None:
    found = compared([charge("1", machine="", owner="")] * 2)
    item = only(found)
    assert (item.machine, item.billed) == ("(no tag)", 2)
    assert item.why == "tags are off"


@pytest.mark.parametrize(
    ("charges", "paid", "why"),
    [
        (
            [charge("3", hours="3")],
            PAID,
            "billed for 3.00 h, counted 2.00 h",
        ),
        (
            [charge("1.2"), charge("0.2", CostPart.DISK)],
            replace(PAID, per_hour=PARTS),
            "billed 0.6000 an hour, counted 0.9000: a discount, or another price since"
            " the offer",
        ),
        (
            [
                charge("1.8"),
                charge("0.2", CostPart.DISK),
                charge("1", CostPart.TRAFFIC),
            ],
            replace(PAID, per_hour=PARTS),
            "traffic is billed (1.00) and was not counted",
        ),
        (
            [charge("1.8")],
            replace(PAID, per_hour=PARTS),
            "disk was counted (0.1000 an hour) and is not billed",
        ),
        ([charge()], replace(PAID, cost=None), "its price was not known"),
        ([charge(currency="EUR")], PAID, "billed in EUR, counted in USD"),
    ],
)
def test_a_difference_is_explained(
    charges: list[Charge], paid: PaidMachine, why: str
) -> None:
    found = compared(charges, paid)
    item = only(found)
    assert item.match is BillMatch.DIFFERENT
    assert why in item.why
    assert found.differs


def test_amounts_of_two_currencies_are_in_no_sum() -> None:
    found = compared([charge(currency="EUR")], PAID)
    assert only(found).difference is None
    assert found.sums == []


def test_a_small_difference_is_listed_and_not_told() -> None:
    found = compared([charge("2.05")], PAID)
    assert only(found).match is BillMatch.DIFFERENT
    assert not found.differs
    assert compared([charge("2.05")], PAID, percent=1.0).differs


def test_the_largest_difference_comes_first() -> None:
    other = replace(PAID, machine="i-2", owner="att_2")
    charges = [charge("2.1"), charge("9", machine="i-2", owner="att_2")]
    found = compared(charges, PAID, other)
    assert [item.machine for item in found.items] == ["i-2", "i-1"]


def test_what_cost_nothing_on_the_day_may_be_missing() -> None:
    free = replace(PAID, cost=Decimal(0))
    assert only(compared([], free)).match is BillMatch.SAME
