"""Amounts of money, as the command shows them."""

from decimal import Decimal

import pytest

from gpuyard.cli.output import money
from gpuyard.domain.jobs import Cost


@pytest.mark.parametrize(
    ("amount", "currency", "shown"),
    [
        ("0", "USD", "$0.00"),
        ("0.001303", "USD", "$0.0013"),
        ("0.000164", "USD", "$0.00016"),
        ("0.0951", "USD", "$0.095"),
        ("0.12345", "USD", "$0.12"),
        ("1.005", "USD", "$1.00"),
        ("1234.567", "CNY", "1234.57 CNY"),
    ],
)
def test_an_amount_has_two_digits_that_mean_something(
    amount: str, currency: str, shown: str
) -> None:
    assert money(Cost(amount=Decimal(amount), currency=currency)) == shown
