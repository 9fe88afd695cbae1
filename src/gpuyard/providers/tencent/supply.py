"""What a TKE cluster can supply: one offer for each node pool, even without nodes, and
offers for the other nodes.

A pool's offer keeps its id while nodes come and go, so that its learned times are kept.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from gpuyard.providers.kubernetes import supply as kubernetes
from gpuyard.providers.kubernetes.fields import Json, text_at
from gpuyard.providers.kubernetes.supply import Supply
from gpuyard.providers.tencent.config import TencentConfig
from gpuyard.providers.tencent.survey import NodePool, Survey

POOL = "tke.cloud.tencent.com/nodepool-id"
INSTANCE = "node.kubernetes.io/instance-type"
# The parts of a new node that jobs can use. What a node needs itself depends on its
# size; an offer must not promise more than its first node will have.
_USABLE_CPU = 0.95
_USABLE_MEMORY = 0.85


def kinds_of(nodes: Iterable[Json]) -> set[str]:
    """The instance types of nodes."""
    return {text_at(node, "metadata", "labels", INSTANCE) for node in nodes} - {""}


def supplies(
    nodes: Sequence[Json], survey: Survey, settings: TencentConfig
) -> list[Supply]:
    """The pools, then the kinds of nodes in no pool, then the configured pools."""
    members: dict[str, list[Json]] = {pool.id: [] for pool in survey.pools}
    others: list[Json] = []
    for node in nodes:
        pool_id = text_at(node, "metadata", "labels", POOL)
        members.get(pool_id, others).append(node)
    found: list[Supply] = []
    for pool in survey.pools:
        supply = _pool_supply(pool, members[pool.id], survey, settings)
        if supply is not None:
            found.append(supply)
    rest = kubernetes.supplies(others, settings, settings.provider)
    found += [_with_market_data(supply, False, survey, settings) for supply in rest]
    return found


def _pool_supply(
    pool: NodePool, nodes: Sequence[Json], survey: Survey, settings: TencentConfig
) -> Supply | None:
    """The offer of a pool, which promises what its smallest kind of node has.

    None for a pool that has no nodes and gets none, or whose nodes jobs may not use.
    """
    # The settings' own pools would add their supplies.
    plain = settings.model_copy(update={"pools": {}})
    existing = kubernetes.supplies(nodes, plain, settings.provider)
    ready = [supply for supply in existing if not supply.offer.problem]
    can_grow = pool.scales and pool.max_nodes > 0 and not ready
    candidates = ready
    if can_grow:
        new_nodes = _new_nodes(pool, survey, settings)
        candidates = kubernetes.supplies(new_nodes, plain, settings.provider)
    candidates = candidates or existing
    if not candidates:
        return None
    supply = _with_market_data(min(candidates, key=_size), pool.spot, survey, settings)
    node_count = sum(one.offer.nodes for one in ready or existing)
    problem = supply.offer.problem
    if can_grow and _is_sold_out(pool, survey):
        problem = (
            f"has no node that is ready, and {', '.join(pool.types)} is sold out in"
            f" {settings.region}"
        )
    offer = replace(
        supply.offer,
        id=f"{settings.provider}/{pool.id}",
        spot=pool.spot,
        problem=problem,
        nodes=max(node_count, pool.max_nodes) if pool.scales else node_count,
    )
    return replace(supply, offer=offer, selector={POOL: pool.id})


def _size(supply: Supply) -> tuple[int, float, float]:
    return supply.offer.gpus, supply.offer.cpus, supply.offer.memory_gb


def _is_sold_out(pool: NodePool, survey: Survey) -> bool:
    return all(survey.machine(name, pool.spot).sold_out for name in pool.types)


def _new_nodes(pool: NodePool, survey: Survey, settings: TencentConfig) -> list[Json]:
    """The nodes that the pool would make, one of each type of known size."""
    nodes: list[Json] = []
    for name in pool.types:
        size = survey.machine(name, pool.spot).size
        if size is None:
            continue
        labels = {**pool.labels, POOL: pool.id, INSTANCE: name}
        allocatable = {
            "cpu": f"{size.cpus * _USABLE_CPU:g}",
            "memory": f"{int(size.memory_gb * _USABLE_MEMORY)}Gi",
            settings.gpu_resource: str(size.gpus),
        }
        conditions = [{"type": "Ready", "status": "True"}]
        node = {
            "metadata": {"name": pool.id, "labels": labels},
            "spec": {"taints": list(pool.taints)},
            "status": {"allocatable": allocatable, "conditions": conditions},
        }
        nodes.append(node)
    return nodes


def _with_market_data(
    supply: Supply, spot: bool, survey: Survey, settings: TencentConfig
) -> Supply:
    """With the GPU and price of the instance type, which TKE's nodes do not tell."""
    machine = survey.machine(supply.selector.get(INSTANCE, ""), spot)
    offer = supply.offer
    known: dict[str, Any] = {"region": settings.region, "billed": True}
    if offer.gpus and machine.size:
        known["gpu"] = offer.gpu or machine.size.gpu_name
        known["gpu_memory_gb"] = offer.gpu_memory_gb or machine.size.gpu_memory_gb
    if offer.price_per_hour is None and machine.price is not None:
        known["price_per_hour"] = machine.price
        known["price_source"] = machine.source
    return replace(supply, offer=replace(offer, **known))
