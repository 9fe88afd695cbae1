"""Tencent Cloud's GPU instance types, as dated data.

From "GPU Computing instances" in the documentation of Tencent Cloud's GPU service on
`CATALOGUE_DATE`. Types with a part of a GPU are left out: GN7.LARGE20 and GN7.2XLARGE40
have a quarter and a half of a T4. Prices are left out: they differ by region and
account, and Tencent's API has them (`Survey`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuyard.domain.gpus import GPU_CLASSES, GPUClass

CATALOGUE_DATE = "2026-11-23"
SOURCE = f"Tencent Cloud, GPU Service, GPU Computing instances, {CATALOGUE_DATE}"


@dataclass(frozen=True, slots=True)
class InstanceType:
    """The GPUs, cores and memory of a machine; `source` says where this comes from."""

    gpu: GPUClass | None
    gpus: int
    cpus: float
    memory_gb: float
    source: str = SOURCE

    @property
    def gpu_name(self) -> str:
        """The GPU's usual name; empty when it is unknown."""
        return _NAMES.get(self.gpu, "") if self.gpu else ""

    @property
    def gpu_memory_gb(self) -> float:
        """The memory of each GPU; 0 when it is unknown."""
        return GPU_CLASSES[self.gpu].memory_gb if self.gpu else 0.0


_NAMES = {
    GPUClass.T4: "T4",
    GPUClass.V100_32GB: "V100",
    GPUClass.A100_40GB: "A100",
    GPUClass.A10: "A10",
}


def _family(
    gpu: GPUClass, name: str, *sizes: tuple[str, int, int, int]
) -> dict[str, InstanceType]:
    return {
        f"{name}.{size}": InstanceType(gpu, gpus, cpus, memory)
        for size, gpus, cpus, memory in sizes
    }


INSTANCE_TYPES: Mapping[str, InstanceType] = {
    **_family(
        GPUClass.T4,
        "GN7",
        ("2XLARGE32", 1, 8, 32),
        ("5XLARGE80", 1, 20, 80),
        ("8XLARGE128", 1, 32, 128),
        ("10XLARGE160", 2, 40, 160),
        ("20XLARGE320", 4, 80, 320),
    ),
    **_family(
        GPUClass.T4,
        "GN7vi",
        ("5XLARGE80", 1, 20, 80),
        ("10XLARGE160", 2, 40, 160),
        ("20XLARGE320", 4, 80, 320),
    ),
    **_family(
        GPUClass.T4,
        "GI3X",
        ("8XLARGE64", 1, 32, 64),
        ("22XLARGE226", 2, 90, 226),
        ("45XLARGE452", 4, 180, 452),
    ),
    **_family(
        GPUClass.V100_32GB,
        "GN10Xp",
        ("2XLARGE40", 1, 10, 40),
        ("5XLARGE80", 2, 20, 80),
        ("10XLARGE160", 4, 40, 160),
        ("20XLARGE320", 8, 80, 320),
    ),
    **_family(
        GPUClass.V100_32GB,
        "GN10X",
        ("2XLARGE40", 1, 8, 40),
        ("9XLARGE160", 4, 36, 160),
        ("18XLARGE320", 8, 72, 320),
    ),
    **_family(
        GPUClass.A100_40GB,
        "GT4",
        ("4XLARGE96", 1, 16, 96),
        ("8XLARGE192", 2, 32, 192),
        ("20XLARGE474", 4, 82, 474),
        ("41XLARGE948", 8, 164, 948),
    ),
    **_family(
        GPUClass.A10,
        "PNV4",
        ("7XLARGE116", 1, 28, 116),
        ("14XLARGE232", 2, 56, 232),
        ("28XLARGE466", 4, 112, 466),
        ("56XLARGE932", 8, 224, 932),
    ),
}
