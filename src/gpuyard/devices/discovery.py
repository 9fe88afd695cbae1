"""Which GPUs this host has now, from the best source it offers.

NVIDIA's by NVML or `nvidia-smi`, AMD's by `amdsmi` where that is installed. Made to be called again and again by a
long-lived process: each call starts afresh and leaves nothing open, so GPUs that were added, removed, lost or brought
back show up at the next one.
"""

from dataclasses import dataclass
from functools import partial

from gpuyard.devices import smi
from gpuyard.devices.gpu import GpuReading, LostGpu, SourceFailedError, SourceMissingError


@dataclass(frozen=True, slots=True)
class Discovery:
    """The GPUs of this host, by driver index. `lost` are there and cannot be used; the others are not touched by that.

    `source` is "nvml", "nvidia-smi", "amdsmi" or "none". `problem` says why the GPUs could not be read and what to do;
    it is None where they could, and on a host that has no source.
    """

    gpus: tuple[GpuReading, ...]
    lost: tuple[LostGpu, ...]
    source: str
    problem: str | None


def discover(smi_timeout_s: float = smi.TIMEOUT_S) -> Discovery:
    """Read all GPUs. Blocks for as long as the driver does (`nvidia-smi` at most `smi_timeout_s` and a second)."""
    from gpuyard.devices import amd, nvml  # late: nvidia-ml-py takes 20 ms to import

    problems: list[str] = []
    smi_gpus = partial(smi.read_gpus, smi_timeout_s)
    sources = (("nvml", nvml.read_gpus), ("nvidia-smi", smi_gpus), ("amdsmi", amd.read_gpus))
    for source, read in sources:
        try:
            return _discovery(read(), source)
        except SourceMissingError:
            continue
        except SourceFailedError as error:
            problems.append(str(error))
    return Discovery((), (), "none", ". ".join(problems) or None)


def _discovery(found: list[GpuReading | LostGpu], source: str) -> Discovery:
    gpus = sorted((gpu for gpu in found if isinstance(gpu, GpuReading)), key=lambda gpu: gpu.index)
    lost = tuple(gpu for gpu in found if isinstance(gpu, LostGpu))
    return Discovery(tuple(gpus), lost, source, None)
