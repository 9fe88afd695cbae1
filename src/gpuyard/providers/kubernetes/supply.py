"""What a cluster can supply: one offer for each kind of node, and one for each pool
that an autoscaler can add.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from gpuyard.domain.offers import Offer
from gpuyard.providers.kubernetes.config import KubernetesConfig, Pool, Toleration
from gpuyard.providers.kubernetes.fields import (
    Json,
    object_at,
    objects_at,
    text_at,
    value_at,
)

_PRODUCT = "nvidia.com/gpu.product"
_INSTANCE = "node.kubernetes.io/instance-type"
_REGION = "topology.kubernetes.io/region"
_SPOT = {
    "cloud.google.com/gke-spot": "true",
    "eks.amazonaws.com/capacityType": "SPOT",
    "karpenter.sh/capacity-type": "spot",
    "kubernetes.azure.com/scalesetpriority": "spot",
}
_Labels = tuple[tuple[str, str], ...]
_UNITS = {
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
}


@dataclass(frozen=True, slots=True)
class Supply:
    """An offer, the labels that select its nodes, and the taints that a job without
    GPUs must tolerate there.
    """

    offer: Offer
    selector: Mapping[str, str]
    tolerations: Sequence[Toleration] = ()


def supplies(
    nodes: Iterable[Json], settings: KubernetesConfig, provider: str
) -> list[Supply]:
    """One supply for each kind of node, then one for each configured pool."""
    kinds: dict[tuple[bool, _Labels], list[Json]] = {}
    for node in nodes:
        if _is_usable(node, settings):
            selector = tuple(sorted(_selector(_labels(node)).items()))
            key = (_has_gpus(node, settings), selector)
            kinds.setdefault(key, []).append(node)
    found = [
        _supply_of(dict(selector), kind, settings, provider)
        for (_, selector), kind in sorted(kinds.items())
    ]
    return [*_with_unique_ids(found), *_pools(settings, provider)]


def _is_usable(node: Json, settings: KubernetesConfig) -> bool:
    """Whether the settings let jobs run on this node."""
    labels = _labels(node)
    is_selected = all(
        labels.get(key) == value for key, value in settings.node_selector.items()
    )
    return is_selected and _tolerations_for(node, settings.tolerations) is not None


def _has_gpus(node: Json, settings: KubernetesConfig) -> bool:
    gpus = value_at(node, "status", "allocatable", settings.gpu_resource)
    return _PRODUCT in _labels(node) or quantity(gpus) > 0


def _with_unique_ids(supplies: list[Supply]) -> list[Supply]:
    """Add the region to the ids of offers that differ only in their region."""
    counts = Counter(supply.offer.id for supply in supplies)
    found: list[Supply] = []
    for supply in supplies:
        offer = supply.offer
        if counts[offer.id] > 1:
            offer = replace(offer, id=f"{offer.id}-{offer.region.lower()}")
        found.append(replace(supply, offer=offer))
    return found


def _selector(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels that tell one kind of node from another."""
    selector = {
        key: labels[key] for key in (_PRODUCT, _INSTANCE, _REGION) if key in labels
    }
    spot = {key: value for key, value in _SPOT.items() if labels.get(key) == value}
    return {**selector, **spot}


def _supply_of(
    selector: dict[str, str],
    nodes: list[Json],
    settings: KubernetesConfig,
    provider: str,
) -> Supply:
    """The supply of nodes of one kind."""
    ready = [node for node in nodes if not _problem(node)]
    shown = ready or nodes
    labels = _labels(shown[0])
    allocatable = [object_at(node, "status", "allocatable") for node in shown]
    # A node whose device plugin restarts has no GPUs for a moment.
    gpus = max(int(quantity(row.get(settings.gpu_resource))) for row in allocatable)
    product = labels.get(_PRODUCT, "")
    spot = any(key in selector for key in _SPOT)
    tolerations = _least_tolerations(shown, settings)
    processor = product or ("gpu" if gpus else "cpu")
    name_parts = (processor, labels.get(_INSTANCE, ""), "spot" if spot else "")
    name = "-".join(part for part in name_parts if part)
    offer = Offer(
        id=f"{provider}/{name.lower().replace(' ', '-')}",
        provider=provider,
        gpu=product.replace("-", " "),
        gpus=gpus,
        gpu_memory_gb=float(labels.get("nvidia.com/gpu.memory") or 0) / 1024,
        gpu_capability=_gpu_capability(labels),
        cpus=max(quantity(row.get("cpu")) for row in allocatable),
        memory_gb=max(quantity(row.get("memory")) for row in allocatable) / 2**30,
        nodes=len(shown),
        region=labels.get(_REGION, ""),
        spot=spot,
        containers=True,
        processes=False,
        workspaces=settings.spool is not None,
        artifacts=settings.spool is not None,
        datasets=settings.spool is not None,
        price_per_hour=_price(labels, gpus, settings),
        currency=settings.currency,
        price_source=f"providers.{provider}.prices",
        divisible=True,
        billed=bool(settings.prices),
        problem="" if ready else f"has no node that is ready ({_problem(nodes[0])})",
        for_gpu_jobs=bool(gpus and tolerations),
    )
    return Supply(offer, selector, tolerations)


def _least_tolerations(
    nodes: Sequence[Json], settings: KubernetesConfig
) -> Sequence[Toleration]:
    """What a job must tolerate to run on the node with the fewest taints."""
    needed = [_tolerations_for(node, settings.tolerations) or () for node in nodes]
    return min(needed, key=len)


def _gpu_capability(labels: Mapping[str, str]) -> str:
    """The CUDA compute capability (`8.0`); empty when it is unknown."""
    major = labels.get("nvidia.com/gpu.compute.major")
    minor = labels.get("nvidia.com/gpu.compute.minor")
    return f"{major}.{minor}" if major and minor else ""


def _price(
    labels: Mapping[str, str], gpus: int, settings: KubernetesConfig
) -> Decimal | None:
    """The configured price per hour of the instance type, or else of its GPUs."""
    of_instance = settings.prices.get(labels.get(_INSTANCE, ""))
    if of_instance is not None:
        return of_instance
    per_gpu = settings.prices.get(labels.get(_PRODUCT, ""))
    return None if per_gpu is None else per_gpu * max(gpus, 1)


def _pools(settings: KubernetesConfig, provider: str) -> list[Supply]:
    found: list[Supply] = []
    for name, pool in settings.pools.items():
        offer = Offer(
            id=f"{provider}/{name}",
            provider=provider,
            gpu=pool.gpu,
            gpus=pool.gpus,
            gpu_memory_gb=pool.gpu_memory_gb,
            cpus=pool.cpus,
            memory_gb=pool.memory_gb,
            nodes=pool.nodes,
            region=pool.region,
            spot=pool.spot,
            containers=True,
            processes=False,
            workspaces=settings.spool is not None,
            artifacts=settings.spool is not None,
            datasets=settings.spool is not None,
            price_per_hour=pool.price_per_hour,
            currency=settings.currency,
            price_source=f"providers.{provider}.pools",
            divisible=True,
            wait_s=pool.wait_s,
            for_gpu_jobs=bool(pool.gpus),
        )
        tolerations = _tolerations_for_pool(pool, settings)
        found.append(Supply(offer, pool.node_selector, tolerations))
    return found


def _tolerations_for_pool(
    pool: Pool, settings: KubernetesConfig
) -> Sequence[Toleration]:
    """The taints of nodes that are not there yet are not known."""
    if pool.gpus:
        return settings.tolerations
    return tuple(
        toleration
        for toleration in settings.tolerations
        if toleration.key not in (None, settings.gpu_resource)
    )


def _labels(node: Json) -> Mapping[str, str]:
    return object_at(node, "metadata", "labels")


def _problem(node: Json) -> str:
    """Why nothing can be placed on the node; empty when it can."""
    if value_at(node, "spec", "unschedulable"):
        return "cordoned"
    conditions = objects_at(node, "status", "conditions")
    ready = [condition for condition in conditions if condition.get("type") == "Ready"]
    if any(condition.get("status") == "True" for condition in ready):
        return ""
    return text_at(ready[0], "reason") if ready else "not ready"


def _tolerations_for(
    node: Json, tolerations: Iterable[Toleration]
) -> Sequence[Toleration] | None:
    """The tolerations that let jobs run there in spite of its taints; None if none
    does.

    Taints by which Kubernetes marks a node's health do not count; `_problem` shows
    them.
    """
    needed: dict[int, Toleration] = {}
    choices = list(tolerations)
    for taint in objects_at(node, "spec", "taints"):
        is_health = text_at(taint, "key").startswith("node.kubernetes.io/")
        is_preference = taint.get("effect") == "PreferNoSchedule"
        if is_health or is_preference:
            continue
        fitting = [index for index, one in enumerate(choices) if one.matches(taint)]
        if not fitting:
            return None
        needed[fitting[0]] = choices[fitting[0]]
    return tuple(needed.values())


def quantity(value: Any) -> float:
    """A Kubernetes quantity (`500m`, `16Gi`, `1e3`) as a number.

    0 for a missing value, and for one that is no quantity.
    """
    text = str(value or "0")
    unit = next((unit for unit in _UNITS if text.endswith(unit)), "")
    try:
        number = Decimal(text.removesuffix(unit).removesuffix("m"))
    except ArithmeticError:
        return 0.0
    divisor = 1000 if text.endswith("m") else 1
    return float(number * _UNITS.get(unit, 1) / divisor)
