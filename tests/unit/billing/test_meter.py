"""The meter: exact amounts, and which tier's price a job on one's own hardware has."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.billing.meter import Price, cost, list_price
from gpuyard.domain.shape import Shape
from gpuyard.domain.tiers import Tier, Tiers


@pytest.mark.parametrize(
    ("per_hour", "ran_s", "expected"),
    [
        ("0.526", 3600.0, "0.526000"),
        ("0.526", 1.0, "0.000146"),
        ("2.012", 86400.0, "48.288000"),
        ("0.0416", 0.25, "0.000003"),
        ("0", 1e6, "0.000000"),
        ("0.526", 0.0, "0.000000"),
        ("0.526", 1e-7, "0.000000"),
    ],
)
def test_an_amount_is_exact(per_hour, ran_s, expected):
    assert str(cost(Decimal(per_hour), ran_s)) == expected


@given(st.decimals(0, 100, places=4), st.floats(0, 1e6), st.floats(0, 1e6))
def test_an_amount_follows_seconds_and_price(per_hour, seconds, more):
    paid = cost(per_hour, seconds)
    assert paid >= 0
    assert abs(paid - per_hour * Decimal(str(seconds)) / 3600) <= Decimal("0.0001")
    assert cost(per_hour, seconds + more) >= paid


OWN = Tier(
    id="BOX",
    name="",
    description="",
    cpu=32,
    memory_gb=256,
    gpu_count=4,
    gpu_memory_gb=80,
    max_runtime_s=60,
    cost_per_hour=Decimal(8),
    currency="EUR",
)


@pytest.mark.parametrize(
    ("shape", "tier", "expected"),
    [
        (Shape(cpus=0.5), None, ("0.02", "USD", "CPU_SMALL")),
        (Shape(gpus=1, gpu_memory_gb=16), None, ("0.526", "USD", "GPU_SMALL")),
        (Shape(gpus=2, gpu_memory_gb=16), None, ("1.052", "USD", "GPU_SMALL")),
        (Shape(gpus=1, nodes=3), None, ("1.578", "USD", "GPU_SMALL")),
        (Shape(gpus=1), "GPU_LARGE", ("2.012", "USD", "GPU_LARGE")),
        (Shape(gpus=2), "GPU_LARGE", ("4.024", "USD", "GPU_LARGE")),
        (Shape(gpus=4), "BOX", ("8", "EUR", "BOX")),  # a tier of four GPUs, once
        (Shape(gpus=5), "BOX", ("16", "EUR", "BOX")),
        (Shape(gpus=4, gpu_memory_gb=80), None, ("8", "EUR", "BOX")),
        (
            Shape(cpus=0.5),
            "GONE",
            ("0.02", "USD", "CPU_SMALL"),
        ),  # the settings no longer have it
    ],
)
def test_the_list_price(shape, tier, expected):
    per_hour, currency, row = expected
    assert list_price(shape, tier, Tiers([OWN]), None, "USD") == Price(
        Decimal(per_hour), currency, "list", row
    )


@pytest.mark.parametrize(
    ("fixed", "nodes", "expected"),
    [("0", 1, "0"), ("0", 4, "0"), ("1.5", 1, "1.5"), ("1.5", 2, "3.0")],
)
def test_a_configured_price_replaces_the_list(fixed, nodes, expected):
    price = list_price(Shape(gpus=8, nodes=nodes), None, Tiers(), Decimal(fixed), "CHF")
    assert (price.per_hour, price.currency, price.basis) == (
        Decimal(expected),
        "CHF",
        "list",
    )
