"""Rounding amounts for people."""

from collections.abc import Sequence
from decimal import Decimal


def in_places(amounts: Sequence[Decimal], places: int) -> list[Decimal]:
    """The amounts, none of which is negative, with so many decimal places, rounded so
    that they add up to their rounded sum: those with the largest remainders are rounded
    up.
    """
    unit = Decimal(1).scaleb(-places)
    rounded = [(each // unit) * unit for each in amounts]
    exact = sum(amounts, Decimal(0)).quantize(unit)
    missing = int((exact - sum(rounded, Decimal(0))) / unit)
    by_remainder = sorted(
        range(len(amounts)), key=lambda index: rounded[index] - amounts[index]
    )
    for index in by_remainder[:missing]:
        rounded[index] += unit
    return [each.quantize(unit) for each in rounded]
