"""How much of a proven memory may lie elsewhere: what the arithmetic gives per class.

A cheater may keep a part of the memory on the host, and move it over the bus in each
pass, while the card works on the rest. The part may be so large that the bus needs just
the time that an honest card of the class is allowed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuyard.domain.gpus import GPU_CLASSES, GPUClass
from gpuyard.verification.claims import vram_gb_to_ask

# What an honest proof may take, as a multiple of the time of its fastest program:
# calibration adds a fifth, and our own program may be so much slower.
SLOWEST = 1.2 * 1.3
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


def part_elsewhere(gpu_class: GPUClass) -> float:
    """The largest part of the proven memory (0 to 1) that may lie on the host.

    A pass reads and writes the memory once. In the time of an honest pass, twice the
    memory over its speed, the bus moves this part in both directions at once.
    """
    speeds = SPEEDS[gpu_class]
    return min(1.0, SLOWEST * 2 * speeds.bus_gbs / speeds.memory_gbs)


def surely_held_gb(gpu_class: GPUClass) -> float:
    """How much memory (GiB) a card has at least that passed a memory proof in time."""
    return vram_gb_to_ask(gpu_class) * (1 - part_elsewhere(gpu_class))


def table() -> list[str]:
    """The rows of the table in the documents."""
    return [
        f"| {name} | {GPU_CLASSES[name].memory_gb} | {vram_gb_to_ask(name):g}"
        f" | {100 * part_elsewhere(name):.0f} % | {surely_held_gb(name):.0f} |"
        for name in GPUClass
    ]
