"""Placing a job that names no node: for callers without gpuyard's scheduler, who have S2's GpuSpec and nothing else."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from gpuyard.domain import wire
from gpuyard.domain.gpus import GPU_CLASSES, GPUClass, classify, resolve_gpu_class
from gpuyard.domain.jobconfig import GpuSpec


def place(need: GpuSpec, nodes: Iterable[wire.Hello], taken: AbstractSet[str]) -> tuple[str, list[str]] | None:
    """The first node that has what `need` asks for, with the UUIDs of its smallest free GPUs that do; None if none has.

    `taken`: UUIDs in use. ValueError for a `gpu_type` that does not exist, with the nearest names.
    """
    classes = resolve_gpu_class(need.gpu_type) if need.gpu_type else None
    for node in nodes:
        free = [gpu for gpu in node.gpus if not gpu.problem and gpu.uuid not in taken and _suits(gpu, need, classes)]
        enough = node.cpus >= (need.vcpus or 0) and node.memory_gb >= (need.ram_gb or 0)
        if enough and len(free) >= need.gpu_count:
            free.sort(key=lambda gpu: (gpu.memory_mb, gpu.index))
            return node.node_id, [gpu.uuid for gpu in free[: need.gpu_count]]
    return None


def _suits(gpu: wire.Gpu, need: GpuSpec, classes: frozenset[GPUClass] | None) -> bool:
    kind = classify(gpu.name, gpu.memory_mb)
    # A card reports a little less than the memory it is sold with.
    memory_gb = GPU_CLASSES[kind].memory_gb if kind else gpu.memory_mb / 1000
    return memory_gb >= (need.memory_gb or 0) and (classes is None or kind in classes)
