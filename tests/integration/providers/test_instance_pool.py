"""The nodes of a pool on rented machines, as the provider of a cloud starts them."""

import asyncio
from decimal import Decimal
from pathlib import Path

from gpuyard.config.pools import PoolSettings
from gpuyard.providers.instances.pool import InstancePool
from gpuyard.providers.instances.settings import InstanceSettings
from gpuyard.providers.pool_hands import PoolOrder
from tests.support.fake_cloud import NAME, FakeCloud

ORDER = PoolOrder(
    "poolnode_1", "warm-1", "https://127.0.0.1:7434", f"{'a' * 64}.{'b' * 32}"
)


def pool(cloud: FakeCloud) -> InstancePool:
    settings = PoolSettings(provider=NAME, type="cpu.small")
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
