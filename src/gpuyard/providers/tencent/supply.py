"""What a TKE cluster can supply: each node pool one offer, whether it has nodes at the moment or not, and other nodes.

A pool's offer keeps its id while nodes come and go, so that what was learned of it stays with it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from gpuyard.providers.kubernetes import supply as kubernetes
from gpuyard.providers.kubernetes.fields import Json, text
from gpuyard.providers.kubernetes.supply import Supply
from gpuyard.providers.tencent.config import TencentConfig
from gpuyard.providers.tencent.survey import NodePool, Survey

POOL, INSTANCE = "tke.cloud.tencent.com/nodepool-id", "node.kubernetes.io/instance-type"
# What a node keeps for itself differs with its size; no job may be promised what its first node has not.
_CPU_LEFT, _MEMORY_LEFT = 0.95, 0.85


def kinds_of(nodes: Iterable[Json]) -> set[str]:
    """The instance types of nodes."""
    return {text(node, "metadata", "labels", INSTANCE) for node in nodes} - {""}


def supplies(nodes: Sequence[Json], survey: Survey, settings: TencentConfig) -> list[Supply]:
    """The pools, then the nodes in no pool alike, then the configured pools."""
    pools = {pool.id: pool for pool in survey.pools}
    members: dict[str, list[Json]] = {name: [] for name in pools}
    others: list[Json] = []
    for node in nodes:
        members.get(text(node, "metadata", "labels", POOL), others).append(node)
    found = [supply for name, pool in pools.items() if (supply := _of_pool(pool, members[name], survey, settings))]
    rest = kubernetes.supplies(others, settings, settings.provider)
    return [*found, *(_informed(one, one.selector.get(INSTANCE, ""), False, survey, settings) for one in rest)]


def _of_pool(pool: NodePool, nodes: Sequence[Json], survey: Survey, settings: TencentConfig) -> Supply | None:
    """None for a pool that has no nodes and gets none, or whose nodes jobs may not use."""
    plain = settings.model_copy(update={"pools": {}})
    here = kubernetes.supplies(nodes, plain, settings.provider)
    ready = [one for one in here if not one.offer.problem]
    coming = pool.scales and pool.most > 0 and not ready
    alike = ready or (
        kubernetes.supplies(_imagined(pool, survey, settings), plain, settings.provider) if coming else []
    )
    if not (alike := alike or here):
        return None
    least = min(alike, key=lambda one: (one.offer.gpus, one.offer.cpus, one.offer.memory_gb))
    supply = _informed(least, least.selector.get(INSTANCE, ""), pool.spot, survey, settings)
    there = sum(one.offer.nodes for one in ready or here)
    problem = supply.offer.problem
    if coming and all(survey.machine(kind, pool.spot).sold_out for kind in pool.types):
        problem = f"has no node that is ready, and {', '.join(pool.types)} is sold out in {settings.region}"
    offer = replace(supply.offer, id=f"{settings.provider}/{pool.id}", spot=pool.spot, problem=problem,
                    nodes=max(there, pool.most) if pool.scales else there)  # fmt: skip
    return Supply(offer, {POOL: pool.id})


def _imagined(pool: NodePool, survey: Survey, settings: TencentConfig) -> list[Json]:
    """The nodes that the pool would make, one of each type of which it is known what it has."""
    known = [(kind, survey.machine(kind, pool.spot).has) for kind in pool.types]
    return [
        {
            "metadata": {"name": pool.id, "labels": {**pool.labels, POOL: pool.id, INSTANCE: kind}},
            "spec": {"taints": list(pool.taints)},
            "status": {
                "allocatable": {"cpu": f"{has.cpus * _CPU_LEFT:g}", "memory": f"{int(has.memory_gb * _MEMORY_LEFT)}Gi",
                                settings.gpu_resource: str(has.gpus)},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        for kind, has in known if has is not None
    ]  # fmt: skip


def _informed(supply: Supply, kind: str, spot: bool, survey: Survey, settings: TencentConfig) -> Supply:
    """With what is known of the instance type: TKE's nodes do not say which GPUs they have, nor what they cost."""
    machine, offer = survey.machine(kind, spot), supply.offer
    known: dict[str, Any] = {"region": settings.region, "billed": True}
    if offer.gpus and machine.has:
        known["gpu"] = offer.gpu or machine.has.gpu_name
        known["gpu_memory_gb"] = offer.gpu_memory_gb or machine.has.gpu_memory_gb
    if offer.price_per_hour is None and machine.price is not None:
        known |= {"price_per_hour": machine.price, "price_source": machine.source}
    return replace(supply, offer=replace(offer, **known))
