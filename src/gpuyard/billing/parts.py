"""Parts of what an attempt cost, in whole millionths of a currency: pure functions."""

from decimal import Decimal

MICROS = 1_000_000
_MICRO = Decimal("0.000001")


def micros(amount: Decimal) -> int:
    """The amount in millionths."""
    return int((amount * MICROS).to_integral_value())


def amount(count: int) -> Decimal:
    """So many millionths as an amount."""
    return (Decimal(count) * _MICRO).quantize(_MICRO)


def part(total: int, began: float, ran_s: float, begin: float, end: float) -> int:
    """What of `total` belongs to the time from `begin` until before `end`. The attempt
    began at `began` and ran for `ran_s` seconds.

    It is the difference of two sums so far. So whatever the cuts, the parts add up to
    the total, and the parts of a day to the part of that day.
    """
    if ran_s <= 0:
        return total if begin <= began < end else 0
    return _so_far(total, began, ran_s, end) - _so_far(total, began, ran_s, begin)


def _so_far(total: int, began: float, ran_s: float, at: float) -> int:
    """What of `total` had been spent at the time `at`."""
    if at >= began + ran_s:
        return total
    if at <= began:
        return 0
    return int(total * ((at - began) / ran_s))


def seconds_within(began: float, ran_s: float, begin: float, end: float) -> float:
    """How many of its seconds are in the time from `begin` until `end`."""
    return max(min(began + ran_s, end) - max(began, begin), 0.0)
