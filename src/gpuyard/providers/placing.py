"""Chooses a node for a job that names none.

For callers that use a provider without gpuyard's scheduler, with S2's GpuSpec only.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from gpuyard.domain import wire
from gpuyard.domain.gpus import GPU_CLASSES, GPUClass, classify, resolve_gpu_class
from gpuyard.domain.jobconfig import GpuSpec


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
