"""Chooses a node, or an offer, for a job that names none.

For callers that use a provider without gpuyard's scheduler, with S2's GpuSpec only.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from gpuyard.domain import wire
from gpuyard.domain.gpus import GPU_CLASSES, GPUClass, classify, resolve_gpu_class
from gpuyard.domain.jobconfig import GpuSpec
from gpuyard.domain.offers import Offer


def place(
    need: GpuSpec, nodes: Iterable[wire.Hello], taken: AbstractSet[str]
) -> tuple[str, list[str]] | None:
    """The first node that has what `need` asks for, and the GPUs to use there.

    They are its smallest free GPUs that suit the job, by UUID. None when no node has
    enough. `taken`: UUIDs in use. ValueError with the nearest names for an unknown
    `gpu_type`.
    """
    classes = resolve_gpu_class(need.gpu_type) if need.gpu_type else None
    for node in nodes:
        free = [
            gpu
            for gpu in node.gpus
            if not gpu.problem and gpu.uuid not in taken and _suits(gpu, need, classes)
        ]
        enough = node.cpus >= (need.vcpus or 0) and node.memory_gb >= (need.ram_gb or 0)
        if enough and len(free) >= need.gpu_count:
            free.sort(key=lambda gpu: (gpu.memory_mb, gpu.index))
            return node.node_id, [gpu.uuid for gpu in free[: need.gpu_count]]
    return None


def _suits(
    gpu: wire.GpuStatus, need: GpuSpec, classes: frozenset[GPUClass] | None
) -> bool:
    gpu_class = classify(gpu.name, gpu.memory_mb)
    # A card reports a little less than the memory it is sold with.
    memory_gb = GPU_CLASSES[gpu_class].memory_gb if gpu_class else gpu.memory_mb / 1000
    has_memory = memory_gb >= (need.memory_gb or 0)
    return has_memory and (classes is None or gpu_class in classes)


def suits(offer: Offer, need: GpuSpec) -> bool:
    """Whether one of the offer's machines has all that is asked for.

    What is not known of its GPUs is not there.
    """
    return has_room(offer, need) and has_gpus_of_kind(offer, need)


def has_room(offer: Offer, need: GpuSpec) -> bool:
    """Whether one of the offer's machines is large enough, whatever its GPUs are."""
    enough = offer.cpus >= (need.vcpus or 0) and offer.memory_gb >= (need.ram_gb or 0)
    return enough and offer.gpus >= need.gpu_count


def has_gpus_of_kind(offer: Offer, need: GpuSpec) -> bool:
    """Whether the offer's GPUs are of the type and size that is asked for, if any."""
    if not names_kind(need):
        return True
    nominal_gb = min((GPU_CLASSES[name].memory_gb for name in offer.classes), default=0)
    if max(offer.gpu_gb, nominal_gb) < (need.memory_gb or 0):
        return False
    # `list_available_gpus` names a GPU as the offer does.
    if not need.gpu_type or need.gpu_type.lower() == gpu_type_of(offer).lower():
        return True
    try:
        wanted = resolve_gpu_class(need.gpu_type)
    except ValueError:
        return False
    return bool(offer.classes) and offer.classes <= wanted


def words_of(need: GpuSpec) -> str:
    """What is asked for, for people; with the nearest names for an unknown type."""
    kind = f"{need.gpu_type} " if need.gpu_type else ""
    each = f" of {need.memory_gb:g} GB" if need.memory_gb else ""
    words = (
        f"{need.gpu_count} {kind}GPUs{each}, {need.vcpus or 0:g} cores and"
        f" {need.ram_gb or 0:g} GB"
    )
    if need.gpu_type:
        try:
            resolve_gpu_class(need.gpu_type)
        except ValueError as error:
            return f"{words} ({error})"
    return words


def names_kind(need: GpuSpec) -> bool:
    """Whether it asks for GPUs of some type or size."""
    return bool(need.gpu_count and (need.gpu_type or need.memory_gb))


def gpu_type_of(offer: Offer) -> str:
    """The type of the offer's GPUs in S2's form."""
    return offer.gpu or "gpu"


def gpu_spec_of(offer: Offer) -> GpuSpec:
    """An offer in S2's form."""
    return GpuSpec(
        gpu_type=gpu_type_of(offer),
        gpu_count=offer.gpus,
        memory_gb=offer.gpu_gb or None,
        vcpus=offer.cpus or None,
        ram_gb=offer.memory_gb or None,
    )
