"""Whether a GPU is fit for work, judged by one reading, and the meaning of the driver's
Xid numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuyard.devices.gpu import GpuReading
from gpuyard.domain.states import GpuState

# If the GPU does not report at which temperature it slows down. Data-centre cards name
# 87 to 95 °C.
SLOWDOWN_C = 90
# A GPU that was too hot gets work again only when it is this much cooler.
COOLED_BY_C = 5

# These are caused by a program's own mistake; the GPU is healthy afterwards. From
# NVIDIA's table of Xid errors; the Kubernetes device plugin ignores the same six.
PROGRAM_XIDS: Mapping[int, str] = {
    13: "graphics engine exception",
    31: "GPU memory page fault",
    43: "the GPU stopped processing",
    45: "preemptive cleanup after an error",
    68: "video processor exception",
    109: "context switch timeout",
}
# Other common ones, in words. Every Xid that a program does not cause quarantines its
# GPU.
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
class GpuFault:
    """Why a GPU gets no work: `state` is `cooling`, `offline` or `quarantined`;
    `reason` says why and what to do.
    """

    state: GpuState
    reason: str


def fault_of(gpu: GpuReading, was_hot: bool = False) -> GpuFault | None:
    """Why the GPU must not be used, by one reading; None if it may.

    `was_hot`: it was too hot at the reading before.
    """
    if gpu.remap_failed:
        return _quarantined(
            "memory rows that failed cannot be remapped any more; have the GPU replaced"
        )
    if gpu.recovery:
        return _quarantined(f"the driver asks to {gpu.recovery}")
    if gpu.remap_pending:
        return _quarantined(
            "memory rows wait to be remapped; reset the GPU (`nvidia-smi --gpu-reset`)"
        )
    if gpu.ecc_uncorrected:
        noun = "error" if gpu.ecc_uncorrected == 1 else "errors"
        return _quarantined(
            f"{gpu.ecc_uncorrected} uncorrected memory {noun} since its last reset;"
            " reset the GPU (`nvidia-smi --gpu-reset`)"
        )
    slowdown_c = gpu.slowdown_c or SLOWDOWN_C
    below = slowdown_c - COOLED_BY_C
    limit = below if was_hot else slowdown_c
    if gpu.temperature_c is not None and gpu.temperature_c >= limit:
        return GpuFault(
            GpuState.COOLING,
            f"too hot; it gets work again below {below} °C: look at its fans and"
            " its air",
        )
    return None


def xid_text(number: int) -> str:
    """An Xid in words."""
    meaning = PROGRAM_XIDS.get(number) or FATAL_XIDS.get(number)
    return f"Xid {number} ({meaning})" if meaning else f"Xid {number}"


def _quarantined(reason: str) -> GpuFault:
    return GpuFault(GpuState.QUARANTINED, reason)
