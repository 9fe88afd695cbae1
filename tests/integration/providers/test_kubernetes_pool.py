"""The nodes of a pool on a full fake of a Kubernetes cluster."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuyard.config.pools import PoolSettings
from gpuyard.domain.errors import ProviderError
from gpuyard.providers.kubernetes.pool import KubernetesPool
from gpuyard.providers.pool_hands import PoolOrder
from tests.integration.providers.test_kubernetes import IMAGE, provider
from tests.integration.providers.test_kubernetes_life import left
from tests.support.fake_pool import FakeOwner
from tests.support.kubernetes import Cluster, Node
from tests.support.wait import eventually

# What stands in for gpuyard.
_PROGRAM = "sh -c 'exec sleep 600' gpuyard"
EVERY_CASE = pytest.mark.skipif(
    "GPUYARD_EVERY_CASE" not in os.environ, reason="`make soak` runs it"
)
Work = Callable[[KubernetesPool], Awaitable[None]]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster([Node("one", gpus=2, cpus=10, memory_gb=40)]) as cluster:
        yield cluster


def order(owner: str = "poolnode_1", code: str = "print.se$cret") -> PoolOrder:
    return PoolOrder(owner, "warm-1", "https://127.0.0.1:7434", code)


def run(cluster: Cluster, home: Path, work: Work, **pool: Any) -> None:
    """Do it with the hands of a pool."""
    given = {"provider": "kubernetes", "image": IMAGE, "command": _PROGRAM, **pool}

    async def all_of_it() -> None:
        prices = {"NVIDIA-A100-SXM4-40GB": 3}
        kubernetes = provider(cluster, home, force_after_s=0.1, prices=prices)
        hands = kubernetes.pool_hands(PoolSettings(**given), FakeOwner())
        try:
            await asyncio.wait_for(work(hands), 60)
        finally:
            await kubernetes.close()

    asyncio.run(all_of_it())


def test_a_node_is_one_pod_with_all_gpus_and_goes_with_its_secret(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def work(hands: KubernetesPool) -> None:
        size = await hands.size()
        assert (size.gpus, size.cpus) == (2, 8.0)
        machine = await hands.launch(order())
        # The reply was lost, and the next server asks again, whatever there is now.
        hands.pool = hands.pool.model_copy(update={"image": None})
        again = await hands.launch(order())
        assert again.reference == machine.reference
        (pod,) = await eventually(
            lambda: [
                one
                for one in cluster.objects("pods")
                if one["status"].get("phase") == "Running"
            ],
            "its pod",
        )
        (container,) = pod["spec"]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
        assert "print.se" not in str(pod)
        (told,) = await hands.machines()
        assert told.live and told.began_at and str(told.price_per_hour) == "6"
        own = hands.owner
        hands.owner = FakeOwner(installation="0" * 32)
        assert await hands.machines() == []
        # One that an earlier version has started, with a label of its own.
        hands.older_label = own.installation
        assert await hands.machines() == []
        hands.owner = FakeOwner("poolnode_1", installation="0" * 32)
        assert await hands.machines() == [told]
        hands.owner = own
        await hands.end(machine.reference)
        await eventually(lambda: not left(cluster), "all to go")
        assert await hands.find("poolnode_1") is None
        await hands.end(machine.reference)

    run(cluster, tmp_path, work)


@EVERY_CASE
def test_a_node_that_cannot_be_or_has_ended_says_why(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def ends(hands: KubernetesPool) -> None:
        machine = await hands.launch(order())

        found = machine
        while found.live:
            await asyncio.sleep(0.02)
            found = await hands.find("poolnode_1") or found
        words = "https://127.0.0.1:7434 --code-file print.se$cret"
        assert found.why == f"Kubernetes: {words}"
        await hands.end(machine.reference)

    run(cluster, tmp_path, ends, command="sh -c 'echo $2 $3 $(cat $4)' gpuyard")

    async def has_no_room(hands: KubernetesPool) -> None:
        for owner in ("poolnode_2", "poolnode_3"):
            await hands.launch(order(owner))
        whys: set[str] = set()
        while not any("Kubernetes: 0/1 nodes" in why for why in whys):
            whys = {machine.why for machine in await hands.machines()}
            await asyncio.sleep(0.02)
        for machine in await hands.machines():
            await hands.end(machine.reference)

    run(cluster, tmp_path, has_no_room)

    async def asks_too_much(hands: KubernetesPool) -> None:
        with pytest.raises(ProviderError, match="max_price: kubernetes/"):
            await hands.launch(order("poolnode_4"))

    run(cluster, tmp_path, asks_too_much, max_price="1")

    async def lacks_an_image(hands: KubernetesPool) -> None:
        with pytest.raises(ProviderError, match="image: the pool names none"):
            await hands.size()

    run(cluster, tmp_path, lacks_an_image, image=None)


@EVERY_CASE
def test_a_node_that_does_not_answer_goes_by_force(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuyard.providers.kubernetes.pool_job.GRACE_S", 0.5)

    async def work(hands: KubernetesPool) -> None:
        machine = await hands.launch(order())
        await eventually(
            lambda: any(
                one["status"].get("phase") == "Running"
                for one in cluster.objects("pods")
            ),
            "its pod",
        )
        cluster.lose_node("one")
        while left(cluster):
            await hands.end(machine.reference)
            await asyncio.sleep(0.1)

    run(cluster, tmp_path, work)
