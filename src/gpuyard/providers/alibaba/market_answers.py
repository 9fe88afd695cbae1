"""Reads Alibaba's answers about types, stock, prices and quotas; pure functions."""

from dataclasses import replace
from decimal import Decimal

from gpuyard.domain.gpus import GPU_CLASSES, resolve_gpu_class
from gpuyard.providers.alibaba.catalogue import INSTANCE_TYPES
from gpuyard.providers.instances.api import MachineType
from gpuyard.providers.kubernetes.fields import Json, object_at, objects_at, text_at

_SOLD_OUT = frozenset({"WithoutStock", "ClosedWithoutStock"})


def machine_type(row: Json) -> MachineType | None:
    """A row of DescribeInstanceTypes; None for a type with a part of a GPU.

    Its GPU is that of the catalogue, or else what Alibaba calls it.
    """
    name = text_at(row, "InstanceTypeId")
    spec = text_at(row, "GPUSpec")
    if "/" in spec:
        return None
    cpus = float(row.get("CpuCoreCount") or 1)
    memory_gb = float(row.get("MemorySize") or 1)
    known = INSTANCE_TYPES.get(name)
    if known is not None:
        return replace(known, cpus=cpus, memory_gb=memory_gb)
    gpus = int(row.get("GPUAmount") or 0)
    if not gpus:
        return MachineType(name, cpus=cpus, memory_gb=memory_gb)
    gpu = spec.removeprefix("NVIDIA").strip()
    return MachineType(
        name,
        gpu=gpu,
        gpus=gpus,
        gpu_memory_gb=float(row.get("GPUMemorySize") or 0),
        capability=_capability(gpu),
        cpus=cpus,
        memory_gb=memory_gb,
    )


def _capability(gpu: str) -> str:
    """What all classes of this name have; empty if it is unknown."""
    try:
        classes = resolve_gpu_class(gpu)
    except ValueError:
        return ""
    found = {GPU_CLASSES[name].compute_capability for name in classes}
    return found.pop() if len(found) == 1 else ""


def stock_in(answer: Json) -> dict[tuple[str, str], bool]:
    """Whether a type is left, by zone and type, from DescribeAvailableResource."""
    found: dict[tuple[str, str], bool] = {}
    for zone in objects_at(answer, "AvailableZones", "AvailableZone"):
        resources = objects_at(zone, "AvailableResources", "AvailableResource")
        for resource in resources:
            for row in objects_at(resource, "SupportedResources", "SupportedResource"):
                is_left = (
                    row.get("Status") == "Available"
                    and row.get("StatusCategory") not in _SOLD_OUT
                )
                found[text_at(zone, "ZoneId"), text_at(row, "Value")] = is_left
    return found


def price_in(answer: Json) -> tuple[Decimal | None, Decimal, str]:
    """The price of a machine with its disk, that of the disk alone, and the currency,
    from DescribePrice.
    """
    price = object_at(answer, "PriceInfo", "Price")
    details = objects_at(price, "DetailInfos", "DetailInfo")
    disk = Decimal(0)
    for row in details:
        if row.get("Resource") == "systemDisk":
            disk = _decimal(row.get("TradePrice")) or Decimal(0)
    return _decimal(price.get("TradePrice")), disk, text_at(price, "Currency") or "CNY"


def newest_spot_prices(answer: Json) -> dict[str, Decimal]:
    """The last price in each zone, from DescribeSpotPriceHistory."""
    newest: dict[str, tuple[str, Decimal]] = {}
    for row in objects_at(answer, "SpotPrices", "SpotPriceType"):
        price = _decimal(row.get("SpotPrice"))
        zone = text_at(row, "ZoneId")
        at = text_at(row, "Timestamp")
        if price is not None and at >= newest.get(zone, ("", price))[0]:
            newest[zone] = at, price
    return {zone: price for zone, (_, price) in newest.items()}


def vcpus_left(answer: Json, kind: str) -> float | None:
    """The vCPUs that the account may still have of a `kind` (`postpaid`, `spot`), from
    DescribeAccountAttributes; None if it does not say.
    """
    values: dict[str, float] = {}
    for row in objects_at(answer, "AccountAttributeItems", "AccountAttributeItem"):
        items = objects_at(row, "AttributeValues", "ValueItem")
        texts = [text_at(item, "Value") for item in items]
        numbers = [float(text) for text in texts if text.isdigit()]
        if numbers:
            values[text_at(row, "AttributeName")] = max(numbers)
    most = values.get(f"max-{kind}-instance-vcpu-count")
    used = values.get(f"used-{kind}-instance-vcpu-count", 0.0)
    return None if most is None else most - used


def _decimal(value: object) -> Decimal | None:
    return None if value is None else Decimal(str(value))
