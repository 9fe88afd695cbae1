"""The nodes of a pool on rented machines, as the provider of a cloud starts them."""

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gpuyard.config.pools import PoolSettings
from gpuyard.domain.errors import ProviderError
from gpuyard.providers.instances.pool import InstancePool
from gpuyard.providers.instances.settings import InstanceSettings
from gpuyard.providers.pool_hands import PoolOrder
from tests.support.fake_cloud import NAME, ZONES, FakeCloud

ORDER = PoolOrder(
    "poolnode_1", "warm-1", "https://127.0.0.1:7434", f"{'a' * 64}.{'b' * 32}"
)


def pool(cloud: FakeCloud, **given: Any) -> InstancePool:
    settings = PoolSettings(**{"provider": NAME, "type": "cpu.small", **given})
    return InstancePool(NAME, settings, InstanceSettings(), cloud, lambda: "lab")


def test_the_next_server_knows_what_a_machine_costs_that_was_started_before_it(
    tmp_path: Path,
) -> None:
    cloud = FakeCloud(tmp_path)
    cloud.add_fault("never_boots")
    first = asyncio.run(pool(cloud).launch(ORDER))
    again = asyncio.run(pool(cloud).launch(ORDER))
    assert again == first
    assert again.price_per_hour == Decimal("0.10")
    assert len(cloud.rows()) == 1


@pytest.mark.parametrize(
    ("given", "wish"),
    [
        ({"type": "cpu.huge"}, "no cpu.huge"),
        ({"regions": ("mars-1",)}, "no cpu.small in mars-1"),
        ({"max_price": "0.09"}, "no cpu.small for at most 0.09 an hour"),
        ({"type": "a100", "spot": True}, "no a100 on spot"),
    ],
)
def test_a_size_that_cannot_be_had_is_named_and_nothing_is_started(
    given: dict[str, Any], wish: str, tmp_path: Path
) -> None:
    cloud = FakeCloud(tmp_path)
    hands = pool(cloud, **given)
    for call in (hands.size(), hands.launch(ORDER)):
        with pytest.raises(ProviderError, match=f"^type: {NAME} has {wish};") as caught:
            asyncio.run(call)
        assert caught.value.error_code == "SETTING"
    assert cloud.rows() == []


@pytest.mark.parametrize("fault", ["capacity", "quota"])
def test_where_there_is_none_the_next_try_is_in_another_zone(
    fault: str, tmp_path: Path
) -> None:
    cloud = FakeCloud(tmp_path)
    first, second = ZONES
    cloud.add_fault(fault, zone=first)
    cloud.add_fault("never_boots", zone=second)
    hands = pool(cloud)
    with pytest.raises(ProviderError, match=f"{fault} in {first}"):
        asyncio.run(hands.launch(ORDER))
    asyncio.run(hands.launch(ORDER))
    assert [row["zone"] for row in cloud.rows()] == [second]
