"""Which markets of a cloud are offered, and what an offer says of them."""

from dataclasses import replace
from decimal import Decimal

import pytest

from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.jobconfig import GpuSpec
from gpuyard.providers.instances.api import MachineType, Market
from gpuyard.providers.instances.markets import cheapest, is_offered, offer_of
from gpuyard.providers.instances.settings import InstanceSettings

A100 = MachineType("p4.small", "NVIDIA A100", 1, 80.0, "8.0", cpus=12, memory_gb=120)
CPU = MachineType("m5.large", cpus=2, memory_gb=8)
A = Market(A100, "here-1", "here-1a", False, Decimal(4), "USD", "a list, today")
SPOT = replace(A, spot=True, price_per_hour=Decimal(1))
PLAIN = replace(A, type=CPU, price_per_hour=Decimal("0.1"))


@pytest.mark.parametrize(
    ("market", "fields", "offered"),
    [
        (A, {}, True),
        (A, {"types": ("p4.small",)}, True),
        (A, {"types": ("A100",)}, True),
        (A, {"types": ("H100", "m5.large")}, False),
        (PLAIN, {"types": ("A100",)}, False),
        (SPOT, {}, True),
        (SPOT, {"spot": False}, False),
        (A, {"max_price": Decimal(4)}, True),
        (A, {"max_price": Decimal("3.99")}, False),
        (replace(A, price_per_hour=None), {"max_price": Decimal(4)}, False),
    ],
)
def test_the_settings_say_what_is_offered(
    market: Market, fields: dict[str, object], offered: bool
):
    assert is_offered(market, InstanceSettings(**fields)) is offered  # pyright: ignore[reportArgumentType]


def test_an_offer_is_named_by_its_market_and_says_where_its_price_is_from():
    offer = offer_of("cloud", SPOT)
    assert offer.id == "cloud/here-1a/p4.small/spot"
    assert offer_of("cloud", A).id == "cloud/here-1a/p4.small/on-demand"
    assert (offer.region, offer.zone, offer.spot) == ("here-1", "here-1a", True)
    assert offer.price_source == "a list, today"
    assert offer.billed
    assert offer.for_gpu_jobs
    assert not offer_of("cloud", PLAIN).for_gpu_jobs


def order(spot: bool = False, **need: object) -> AttemptOrder:
    spec = GpuSpec.model_validate({"gpu_count": 0, **need})
    return AttemptOrder(
        attempt_id="attempt_1",
        name="job",
        command=("true",),
        gpu_spec=spec,
        spot=spot,
    )


def test_without_an_offer_the_cheapest_market_with_enough_is_taken():
    markets = (A, SPOT, PLAIN)
    assert cheapest("cloud", markets, order()) is PLAIN
    assert cheapest("cloud", markets, order(gpu_count=1)) is A
    assert cheapest("cloud", markets, order(gpu_count=1, spot=True)) is SPOT
    assert cheapest("cloud", markets, order(gpu_count=2)) is None
    full = replace(PLAIN, problem="sold out")
    assert cheapest("cloud", (A, full), order()) is A


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("server_url", "http://lab:7434"),
        ("server_url", "https://lab"),
        ("disk_gb", 1),
        ("max_price", 0),
        ("boot_timeout_s", -1),
        ("zones", "a"),
    ],
)
def test_a_wrong_setting_is_named(field: str, value: object):
    with pytest.raises(InvalidInputError) as error:
        InstanceSettings.read({field: value})
    assert [fault.field for fault in error.value.faults] == [field]
