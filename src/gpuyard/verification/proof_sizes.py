"""How much work a proof asks of a class, by published figures of its cards.

It is enough to take some seconds, so that what is measured is the card, and not the
network or the start of a kernel.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gpuyard.domain.gpus import GPU_CLASSES, GPUClass
from gpuyard.verification.solver.memory import FEWEST_PASSES
from gpuyard.verification.solver.product import rows_of

# The matrices of a product: so large that to multiply takes longer than to read them.
PRODUCT_SIZE = 16384
# At the published speeds, which no real card attains.
MEMORY_S = 3.0
PRODUCTS_S = 1.0
_PCIE_3 = 15.75
_PCIE_4 = 31.5
_PCIE_5 = 63.0
_NVLINK_C2C = 450.0


@dataclass(frozen=True, slots=True)
class Speeds:
    """Published figures in 10⁹ bytes a second.

    `memory_gbs`: of the card's memory, in all. `bus_gbs`: of its bus, in each of the
    two directions.
    """

    memory_gbs: float
    bus_gbs: float


# Of the fastest bus that cards of a class come with, and the slowest memory.
SPEEDS: Mapping[GPUClass, Speeds] = {
    GPUClass.P100: Speeds(732, _PCIE_3),
    GPUClass.V100_16GB: Speeds(900, _PCIE_3),
    GPUClass.V100_32GB: Speeds(900, _PCIE_3),
    GPUClass.T4: Speeds(320, _PCIE_3),
    GPUClass.RTX_3090: Speeds(936, _PCIE_4),
    GPUClass.RTX_4090: Speeds(1008, _PCIE_4),
    GPUClass.RTX_5090: Speeds(1792, _PCIE_5),
    GPUClass.A6000: Speeds(768, _PCIE_4),
    GPUClass.RTX_6000_ADA: Speeds(960, _PCIE_4),
    GPUClass.A10: Speeds(600, _PCIE_4),
    GPUClass.A10G: Speeds(600, _PCIE_4),
    GPUClass.A30: Speeds(933, _PCIE_4),
    GPUClass.A40: Speeds(696, _PCIE_4),
    GPUClass.A100_40GB: Speeds(1555, _PCIE_4),
    GPUClass.A100_80GB: Speeds(1935, _PCIE_4),
    GPUClass.L4: Speeds(300, _PCIE_4),
    GPUClass.L40: Speeds(864, _PCIE_4),
    GPUClass.L40S: Speeds(864, _PCIE_4),
    GPUClass.H100_80GB: Speeds(2000, _PCIE_5),
    GPUClass.H100_94GB: Speeds(3900, _PCIE_5),
    GPUClass.H200: Speeds(4800, _PCIE_5),
    GPUClass.GH200: Speeds(4000, _NVLINK_C2C),
    GPUClass.B200: Speeds(8000, _PCIE_5),
}
_missing = set(GPUClass) - set(SPEEDS)
if _missing:
    raise RuntimeError(f"SPEEDS lacks {sorted(_missing)}")


def vram_gb_to_ask(gpu_class: GPUClass) -> float:
    """How much memory (GiB) a proof asks for.

    It is close to the class's size, and more than the next smaller card of its kind
    has. Drivers, error correction and torch itself take up to an eighth of a 16 GB
    card.
    """
    return round(GPU_CLASSES[gpu_class].memory_gb * 0.85, 2)


def passes_to_ask(gpu_class: GPUClass) -> int:
    """How many passes a memory proof has: about three seconds' of a fast card."""
    pass_s = 2 * vram_gb_to_ask(gpu_class) * 2**30 / SPEEDS[gpu_class].memory_gbs / 1e9
    return max(FEWEST_PASSES, math.ceil(MEMORY_S / pass_s))


def products_to_ask(gpu_class: GPUClass) -> int:
    """How many products a proof of speed asks for: about a second's, at the published
    half precision of the class.
    """
    operations = 2 * rows_of(PRODUCT_SIZE) * PRODUCT_SIZE**2
    return max(1, round(GPU_CLASSES[gpu_class].tflops * 1e12 * PRODUCTS_S / operations))
