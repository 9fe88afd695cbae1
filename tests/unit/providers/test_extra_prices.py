"""What rented machines cost besides: disks, public addresses and traffic."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from gpuyard.domain.bills import CostPart
from gpuyard.domain.errors import InvalidInputError, ProviderError
from gpuyard.domain.price_parts import PricePart, amounts, by_name
from gpuyard.providers.aws.config import AwsConfig
from gpuyard.providers.instances.api import PRICE, MachineType, Market
from gpuyard.providers.instances.extras import with_extras
from gpuyard.providers.instances.markets import offer_of, offered, spot_bid
from gpuyard.providers.instances.settings import InstanceSettings

GPU = MachineType("g5.xlarge", "A10G", 1, 24.0, "8.6", 4.0, 16.0)
MARKET = Market(
    GPU, "us-east-1", "us-east-1a", False, Decimal("1.006"), "USD", "a list, 2026-11-29"
)


def aws(**values: Any) -> AwsConfig:
    return AwsConfig.read({"home": "/", "regions": ["us-east-1"], **values})


def beside(
    settings: InstanceSettings, market: Market = MARKET, provider: str = "aws"
) -> dict[str, Decimal]:
    (found,) = with_extras([market], provider, settings)
    return {part.part.value: part.per_hour for part in found.beside}


def test_disk_and_address_are_counted_with_source_and_date() -> None:
    (market,) = with_extras([MARKET], "aws", aws(disk_gb=365))
    assert [(one.part, one.per_hour) for one in market.beside] == [
        (CostPart.DISK, Decimal("0.04")),
        (CostPart.ADDRESS, Decimal("0.005")),
    ]
    assert market.total_per_hour == Decimal("1.051")
    offer = offer_of("aws", market)
    assert offer.price_per_hour == Decimal("1.051")
    assert by_name(offer.parts) == {
        "machine": "1.006",
        "disk": "0.040000",
        "address": "0.005000",
    }
    assert all(one.source.endswith(", 2026-11-29") for one in offer.parts)


def test_a_disk_is_never_smaller_than_the_cloud_makes_it() -> None:
    market = replace(MARKET, disk_gb=365)
    assert beside(aws(disk_gb=100), market)["disk"] == Decimal("0.04")
    assert beside(aws(disk_gb=730), market)["disk"] == Decimal("0.08")


def test_traffic_is_estimated_as_the_settings_say() -> None:
    assert beside(aws(traffic_gb_per_hour=0.5))["traffic"] == Decimal("0.045")
    assert "traffic" not in beside(aws())


def test_a_machine_without_a_public_address_pays_none() -> None:
    assert "address" not in beside(aws(public_address=False))


def test_prices_of_the_settings_come_first() -> None:
    settings = aws(extra_prices={"disk": "7.3", "address": 0}, disk_gb=100)
    (market,) = with_extras([MARKET], "aws", settings)
    (disk, address) = market.beside
    assert (disk.per_hour, disk.source) == (1, "providers.aws.extra_prices")
    assert address.per_hour == 0


def test_what_has_no_known_price_is_left_out() -> None:
    elsewhere = replace(MARKET, region="sa-east-1", zone="sa-east-1a")
    assert beside(aws(regions=["sa-east-1"]), elsewhere) == {
        "address": Decimal("0.005")
    }
    in_yuan = replace(MARKET, currency="CNY")
    assert beside(aws(), in_yuan) == {}
    plain = InstanceSettings.read({"home": "/"})
    assert beside(plain, provider="fakecloud") == {}
    (market,) = with_extras([MARKET], "fakecloud", plain)
    assert (market.total_per_hour, market.parts) == (MARKET.price_per_hour, ())


def test_what_the_price_of_the_cloud_has_is_not_counted_twice() -> None:
    disk = PricePart(CostPart.DISK, Decimal("0.05"), "the cloud, 2026-11-29")
    market = replace(MARKET, within=(disk,))
    (found,) = with_extras([market], "aws", aws(public_address=False))
    assert found.total_per_hour == MARKET.price_per_hour
    assert by_name(found.parts) == {"machine": "0.956", "disk": "0.05"}


def test_max_price_is_for_all_of_it() -> None:
    assert offered([MARKET], "aws", aws(max_price="1.03"))
    assert not offered([MARKET], "aws", aws(max_price="1.01"))
    unknown = replace(MARKET, price_per_hour=None)
    (market,) = with_extras([unknown], "aws", aws())
    assert (market.total_per_hour, market.parts) == (None, ())


SPOT = replace(MARKET, spot=True, price_per_hour=Decimal("0.4"))


def test_a_spot_bid_is_for_the_machine_alone() -> None:
    settings = aws(disk_gb=365, max_price="0.5")
    (market,) = offered([SPOT], "aws", settings)
    # The disk costs 0.04 an hour, and the address 0.005.
    assert spot_bid("aws", market, settings) == Decimal("0.455")
    disk = PricePart(CostPart.DISK, Decimal("0.1"), "the cloud, 2026-11-29")
    of_alibaba = replace(SPOT, within=(disk,))
    assert spot_bid("alibaba", of_alibaba, settings) == Decimal("0.4")


def test_there_is_no_bid_on_demand_and_without_a_limit() -> None:
    assert spot_bid("aws", MARKET, aws(max_price="0.5")) is None
    assert spot_bid("aws", SPOT, aws()) is None


def test_a_limit_that_leaves_nothing_for_the_machine_is_refused() -> None:
    settings = aws(disk_gb=365, max_price="0.045")
    (market,) = with_extras([SPOT], "aws", settings)
    with pytest.raises(ProviderError, match="nothing is left") as caught:
        spot_bid("aws", market, settings)
    assert caught.value.error_code == PRICE
    assert "0.045 USD an hour" in str(caught.value)


@pytest.mark.parametrize(
    ("prices", "said"),
    [
        ({"disc": "1"}, "extra_prices"),
        ({"machine": "1"}, "extra_prices"),
        ({"disk": "cheap"}, "extra_prices"),
        ({"disk": "-1"}, "extra_prices"),
    ],
)
def test_a_wrong_price_is_named(prices: Any, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        aws(extra_prices=prices)


def test_a_cost_is_told_apart_and_adds_up() -> None:
    prices = {"machine": "1", "disk": "0.3333", "address": "0.005"}
    found = amounts(Decimal("0.100001"), prices)
    assert sum(found.values()) == Decimal("0.100001")
    assert found["disk"] == Decimal("0.024905")
    assert amounts(Decimal(1), {}) == {}
