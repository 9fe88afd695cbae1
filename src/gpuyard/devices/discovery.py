"""Discovers the GPUs of this host from the best source that it has: NVIDIA's by NVML or
`nvidia-smi`, AMD's by `amdsmi` if that is installed.

A long-lived process can call this again and again: each call starts anew and leaves
nothing open. So GPUs that were added, removed, lost or brought back show at the next
call.
"""

from dataclasses import dataclass
from functools import partial

from gpuyard.devices import smi
from gpuyard.devices.gpu import (
    GpuReading,
    LostGpu,
    SourceFailedError,
    SourceMissingError,
)


@dataclass(frozen=True, slots=True)
class Discovery:
    """The GPUs of this host, by driver index. `lost` are those that exist but cannot be
    used; they do not affect the others.

    `source` is "nvml", "nvidia-smi", "amdsmi" or "none". `problem` says why the GPUs
    could not be read and what to do; it is None if they could, and on a host without a
    source.
    """

    gpus: tuple[GpuReading, ...]
    lost: tuple[LostGpu, ...]
    source: str
    problem: str | None


def discover(smi_timeout_s: float = smi.TIMEOUT_S) -> Discovery:
    """Read all GPUs.

    Blocks for as long as the driver does (`nvidia-smi` at most `smi_timeout_s` and a
    second).
    """
    from gpuyard.devices import amd, nvml  # late: nvidia-ml-py takes 20 ms to import

    problems: list[str] = []
    smi_gpus = partial(smi.read_gpus, smi_timeout_s)
    sources = (
        ("nvml", nvml.read_gpus),
        ("nvidia-smi", smi_gpus),
        ("amdsmi", amd.read_gpus),
    )
    for source, read in sources:
        try:
            return _discovery(read(), source)
        except SourceMissingError:
            continue
        except SourceFailedError as error:
            problems.append(str(error))
    return Discovery((), (), "none", ". ".join(problems) or None)


def _discovery(found: list[GpuReading | LostGpu], source: str) -> Discovery:
    gpus = [gpu for gpu in found if isinstance(gpu, GpuReading)]
    gpus.sort(key=lambda gpu: gpu.index)
    lost = tuple(gpu for gpu in found if isinstance(gpu, LostGpu))
    return Discovery(tuple(gpus), lost, source, None)
