"""How much of a proven memory may lie elsewhere: what the arithmetic gives per class.

A cheater may keep a part of the memory on the host, and move it over the bus in each
pass, while the card works on the rest. The part may be so large that the bus needs just
the time that an honest card of the class is allowed.
"""

from gpuyard.domain.gpus import GPU_CLASSES, GPUClass
from gpuyard.verification.proof_sizes import SPEEDS, passes_to_ask, vram_gb_to_ask

# What an honest proof may take, as a multiple of the time of its fastest program:
# calibration adds a fifth, and our own program may be so much slower.
SLOWEST = 1.2 * 1.3


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
        f" | {passes_to_ask(name)} | {100 * part_elsewhere(name):.0f} %"
        f" | {surely_held_gb(name):.0f} |"
        for name in GPUClass
    ]
