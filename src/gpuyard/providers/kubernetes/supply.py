"""What a cluster can supply: its nodes, those alike as one offer, and the pools that an autoscaler can make."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from gpuyard.domain.offers import Offer
from gpuyard.providers.kubernetes.config import KubernetesConfig, Toleration
from gpuyard.providers.kubernetes.fields import Json, at, rows, table, text

_PRODUCT, _INSTANCE = "nvidia.com/gpu.product", "node.kubernetes.io/instance-type"
_REGION = "topology.kubernetes.io/region"
_SPOT = {
    "cloud.google.com/gke-spot": "true", "eks.amazonaws.com/capacityType": "SPOT", "karpenter.sh/capacity-type": "spot",
    "kubernetes.azure.com/scalesetpriority": "spot",
}  # fmt: skip
_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


@dataclass(frozen=True, slots=True)
class Supply:
    """An offer, and the labels of the nodes it stands for."""

    offer: Offer
    selector: Mapping[str, str]


def supplies(nodes: Iterable[Json], settings: KubernetesConfig, provider: str) -> list[Supply]:
    """Nodes alike are one supply; then the configured pools."""
    groups: dict[tuple[bool, tuple[tuple[str, str], ...]], list[Json]] = {}
    for node in nodes:
        labels = _labels(node)
        if all(labels.get(key) == value for key, value in settings.node_selector.items()) and _tolerated(
            node, settings.tolerations
        ):
            gpus = _PRODUCT in labels or quantity(at(node, "status", "allocatable", settings.gpu_resource)) > 0
            groups.setdefault((gpus, tuple(sorted(_selector(labels).items()))), []).append(node)
    found = [_of_nodes(dict(key), alike, settings, provider) for (_, key), alike in sorted(groups.items())]
    return [*_told_apart(found), *_pools(settings, provider)]


def _told_apart(found: list[Supply]) -> list[Supply]:
    """With their regions in the ids of those that only differ by these."""
    times = Counter(one.offer.id for one in found)
    return [one if times[one.offer.id] == 1
            else Supply(replace(one.offer, id=f"{one.offer.id}-{one.offer.region.lower()}"), one.selector)
            for one in found]  # fmt: skip


def _selector(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels that tell one kind of node from another."""
    kinds = {key: labels[key] for key in (_PRODUCT, _INSTANCE, _REGION) if key in labels}
    return kinds | {key: value for key, value in _SPOT.items() if labels.get(key) == value}


def _of_nodes(selector: dict[str, str], nodes: list[Json], settings: KubernetesConfig, provider: str) -> Supply:
    ready = [node for node in nodes if not _why_not(node)]
    shown = ready or nodes
    labels = _labels(shown[0])
    have = [table(node, "status", "allocatable") for node in shown]
    # One whose device plugin is starting anew has none for a moment.
    gpus = max(int(quantity(row.get(settings.gpu_resource))) for row in have)
    product, spot = labels.get(_PRODUCT, ""), any(key in selector for key in _SPOT)
    name = "-".join(
        filter(None, (product or ("gpu" if gpus else "cpu"), labels.get(_INSTANCE, ""), "spot" if spot else ""))
    )
    instance, per_gpu = settings.prices.get(labels.get(_INSTANCE, "")), settings.prices.get(product)
    capability = (labels.get("nvidia.com/gpu.compute.major"), labels.get("nvidia.com/gpu.compute.minor"))
    offer = Offer(
        id=f"{provider}/{name.lower().replace(' ', '-')}", provider=provider, gpu=product.replace("-", " "), gpus=gpus,
        gpu_memory_gb=float(labels.get("nvidia.com/gpu.memory") or 0) / 1024,
        gpu_capability=".".join(part for part in capability if part) if all(capability) else "",
        cpus=max(quantity(row.get("cpu")) for row in have),
        memory_gb=max(quantity(row.get("memory")) for row in have) / 2**30,
        nodes=len(shown), region=labels.get(_REGION, ""), spot=spot, containers=True, processes=False,
        workspaces=settings.spool is not None,
        price_per_hour=instance if instance is not None else None if per_gpu is None else per_gpu * max(gpus, 1),
        currency=settings.currency, price_source=f"providers.{provider}.prices", divisible=True,
        billed=bool(settings.prices),
        problem="" if ready else f"has no node that is ready ({_why_not(nodes[0])})",
    )  # fmt: skip
    return Supply(offer, selector)


def _pools(settings: KubernetesConfig, provider: str) -> list[Supply]:
    found: list[Supply] = []
    for name, pool in settings.pools.items():
        offer = Offer(
            id=f"{provider}/{name}", provider=provider, gpu=pool.gpu, gpus=pool.gpus, gpu_memory_gb=pool.gpu_memory_gb,
            cpus=pool.cpus, memory_gb=pool.memory_gb, nodes=pool.nodes, region=pool.region, spot=pool.spot,
            containers=True, processes=False,
            workspaces=settings.spool is not None, price_per_hour=pool.price_per_hour, currency=settings.currency,
            price_source=f"providers.{provider}.pools", divisible=True, wait_s=pool.wait_s,
        )  # fmt: skip
        found.append(Supply(offer, pool.node_selector))
    return found


def _labels(node: Json) -> Mapping[str, str]:
    return table(node, "metadata", "labels")


def _why_not(node: Json) -> str:
    """Why nothing can be placed there; empty when it can."""
    if at(node, "spec", "unschedulable"):
        return "cordoned"
    ready = [one for one in rows(node, "status", "conditions") if one.get("type") == "Ready"]
    if any(one.get("status") == "True" for one in ready):
        return ""
    return text(ready[0], "reason") if ready else "not ready"


def _tolerated(node: Json, tolerations: Iterable[Toleration]) -> bool:
    """Jobs may run there in spite of its taints; those that come and go with its health are told as a problem."""
    taints = rows(node, "spec", "taints")
    lasting = [taint for taint in taints if not text(taint, "key").startswith("node.kubernetes.io/")]
    return all(
        taint.get("effect") == "PreferNoSchedule" or any(_matches(one, taint) for one in tolerations)
        for taint in lasting
    )


def _matches(toleration: Toleration, taint: Json) -> bool:
    if toleration.key is not None and toleration.key != taint.get("key"):
        return False
    if toleration.effect is not None and toleration.effect != taint.get("effect"):
        return False
    return toleration.operator == "Exists" or (toleration.value or "") == (taint.get("value") or "")


def quantity(text: Any) -> float:
    """A quantity of Kubernetes' (`500m`, `16Gi`, `1e3`) as a number; 0 for none, or one that makes no sense."""
    word = str(text or "0")
    unit = next((unit for unit in _UNITS if word.endswith(unit)), "")
    try:
        number = Decimal(word.removesuffix(unit).removesuffix("m"))
    except ArithmeticError:
        return 0.0
    return float(number * _UNITS.get(unit, 1) / (1000 if word.endswith("m") else 1))
