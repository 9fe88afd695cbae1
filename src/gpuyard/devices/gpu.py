"""One reading of one GPU, the same for every source, and the errors of sources."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that uses a GPU.

    `memory_mb` is None if the driver does not report it.
    """

    pid: int
    memory_mb: int | None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """A GPU or one MIG instance at one moment. `uuid` identifies it; `index` is the
    driver's and may change at a reboot.

    Memory is in MiB, rounded down, as the driver reports it. `compute_capability` is
    like "8.0", "" if unknown. `temperature_c` is in °C, `utilization` from 0 to 1 over
    the driver's last sample period, `power_w` in watts; each is None if the GPU or the
    source does not report it. A MIG instance (`mig`) has its parent's index and
    temperature; `parent` is that GPU's UUID and `instance` its number there.
    `processes` is empty if the source does not report them. `power_limited`: it runs at
    its power limit, as GPUs of data centres do in training. `hardware_slowed`: its
    hardware slows it down, for want of power or for heat. Both are false where that is
    not known: with `nvidia-smi`, and for AMD's GPUs. Of the device files,
    `minor` is the number of NVIDIA's for the (parent) GPU, `compute_instance` the
    number within a MIG instance, and `drm` has the numbers of AMD's.

    Health, as far as it is reported: `ecc_uncorrected` errors since the driver was
    loaded; whether memory rows wait for a reset to be remapped, or could not be
    remapped; what the driver asks for (`recovery`, None: nothing); and the temperature
    from which the GPU slows itself down.
    """

    uuid: str
    index: int
    name: str
    memory_total_mb: int
    memory_free_mb: int
    compute_capability: str
    driver_version: str
    temperature_c: int | None
    utilization: float | None
    power_w: float | None
    processes: tuple[GpuProcess, ...]
    mig: bool
    ecc_uncorrected: int | None = None
    remap_pending: bool = False
    remap_failed: bool = False
    recovery: str | None = None
    slowdown_c: int | None = None
    parent: str = ""
    instance: int | None = None
    minor: int | None = None
    compute_instance: int | None = None
    drm: tuple[int, ...] = ()
    power_limited: bool = False
    hardware_slowed: bool = False


@dataclass(frozen=True, slots=True)
class LostGpu:
    """A GPU that exists but cannot be used now.

    `uuid` and `index` are None if they could not be read.
    """

    uuid: str | None
    index: int | None
    reason: str


class SourceMissingError(Exception):
    """This host does not have the source (library or program): try the next one."""


class SourceFailedError(Exception):
    """The source exists but cannot list the GPUs.

    The text says why, and what to do.
    """
