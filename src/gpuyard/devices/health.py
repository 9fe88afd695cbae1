"""Is this GPU fit for work? One reading's verdict, and what the driver's Xid numbers mean."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuyard.devices.gpu import GpuReading
from gpuyard.domain.states import GpuState

# Where the GPU does not tell at which temperature it slows down. Data-centre cards name 87 to 95 °C.
SLOWDOWN_C = 90
# A GPU that was too hot gets work again only this much below.
COOLED_BY_C = 5

# The ones that a program's own mistake raises; the GPU is well afterwards. From NVIDIA's table of Xid errors; the
# Kubernetes device plugin passes over the same six.
PROGRAM_XIDS: Mapping[int, str] = {
    13: "graphics engine exception",
    31: "GPU memory page fault",
    43: "the GPU stopped processing",
    45: "preemptive cleanup after an error",
    68: "video processor exception",
    109: "context switch timeout",
}
# Others that people meet, for a reason in words; every Xid that is not a program's quarantines its GPU.
FATAL_XIDS: Mapping[int, str] = {
    48: "double-bit ECC error",
    63: "a memory row was remapped",
    64: "a memory row could not be remapped",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "high rate of single-bit ECC errors",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "the GPU's system processor timed out",
    120: "the GPU's system processor failed",
    140: "unrecovered ECC error",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a GPU gets no work: `state` is `cooling`, `offline` or `quarantined`, `reason` says why and what to do."""

    state: GpuState
    reason: str


def fault_of(gpu: GpuReading, was_hot: bool = False) -> Fault | None:
    """What one reading says against using the GPU; None for nothing. `was_hot`: the reading before found it so."""
    if gpu.remap_failed:
        return _quarantined("memory rows that failed cannot be remapped any more; have the GPU replaced")
    if gpu.recovery:
        return _quarantined(f"the driver asks to {gpu.recovery}")
    if gpu.remap_pending:
        return _quarantined("memory rows wait to be remapped; reset the GPU (`nvidia-smi --gpu-reset`)")
    if gpu.ecc_uncorrected:
        errors = f"{gpu.ecc_uncorrected} uncorrected memory error{'s' * (gpu.ecc_uncorrected != 1)}"
        return _quarantined(f"{errors} since its last reset; reset the GPU (`nvidia-smi --gpu-reset`)")
    limit = (gpu.slowdown_c or SLOWDOWN_C) - (COOLED_BY_C if was_hot else 0)
    if gpu.temperature_c is not None and gpu.temperature_c >= limit:
        below = (gpu.slowdown_c or SLOWDOWN_C) - COOLED_BY_C
        return Fault(GpuState.COOLING, f"too hot; it gets work again below {below} °C: look at its fans and its air")
    return None


def xid_text(number: int) -> str:
    """An Xid in words."""
    meaning = PROGRAM_XIDS.get(number) or FATAL_XIDS.get(number)
    return f"Xid {number} ({meaning})" if meaning else f"Xid {number}"


def _quarantined(reason: str) -> Fault:
    return Fault(GpuState.QUARANTINED, reason)
