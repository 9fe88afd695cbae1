# pyright: basic
"""Measure what this rank's GPUs do while it answers, by NVIDIA's library NVML.

The library comes with the driver. It is called directly, so that the interpreter of the
cluster needs no further package.
"""

import ctypes
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
_PAUSE_S = 0.1
_SUCCESS = 0


class _NvmlMemory(ctypes.Structure):
    """Bytes, as `nvmlMemory_t` has them."""

    _fields_ = [
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


class _NvmlUtilization(ctypes.Structure):
    """Percent, as `nvmlUtilization_t` has them."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


@dataclass(frozen=True)
class GpuFigures:
    """What the GPUs of a rank did together.

    `utilization` is the mean part of the time in which a kernel ran, from 0 to 1;
    `memory_bytes` the most that was in use on one GPU, by all programs; `energy_j` the
    energy of all in joules. Each is None where the driver does not tell.
    """

    utilization: float | None = None
    memory_bytes: int | None = None
    energy_j: float | None = None


def gpus_of_rank(
    environment: Mapping[str, str], local_rank: int, *, has_all: bool
) -> list[str]:
    """Return the numbers or UUIDs of the GPUs that a rank uses.

    `has_all`: the process drives all GPUs that it sees. NVML counts all GPUs of the
    host, so without CUDA_VISIBLE_DEVICES the number of the rank there is that of the
    GPU.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if has_all:
        return names
    if not names:
        return [str(local_rank)]
    return [names[local_rank % len(names)]]


class GpuMeter:
    """Samples GPUs in a thread of its own, from `start` to `stop`.

    It does not fail: where there is no NVML, nothing is known.
    """

    def __init__(self, gpus: Sequence[str], library: str = LIBRARY) -> None:
        """`gpus` are numbers or UUIDs; none means all of the host."""
        self._devices: list[_MeteredGpu] = []
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        if not library:
            return
        try:
            nvml = ctypes.CDLL(library)
            if nvml.nvmlInit_v2() != _SUCCESS:
                return
            names = list(gpus) or [str(at) for at in range(_count(nvml))]
            found = [_device(nvml, name) for name in names]
        except (OSError, AttributeError):
            return
        self._devices = [_MeteredGpu(nvml, one) for one in found if one is not None]

    @classmethod
    def of_nothing(cls) -> "GpuMeter":
        """Return a meter that measures nothing."""
        return cls([], library="")

    def start(self) -> None:
        """Begin to measure."""
        for device in self._devices:
            device.sample()
        if self._devices:
            self._thread = threading.Thread(target=self._sample, daemon=True)
            self._thread.start()

    def stop(self) -> GpuFigures:
        """End, and return what was measured."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        for device in self._devices:
            device.sample()
        used = [memory for one in self._devices for memory in one.memory]
        shares = [share for one in self._devices for share in one.utilization]
        energies = [one.energy_j() for one in self._devices]
        known = [energy for energy in energies if energy is not None]
        return GpuFigures(
            sum(shares) / len(shares) if shares else None,
            max(used, default=None),
            sum(known) if known and len(known) == len(energies) else None,
        )

    def _sample(self) -> None:
        while not self._stopping.wait(_PAUSE_S):
            for device in self._devices:
                device.sample()


class _MeteredGpu:
    """One GPU and its samples."""

    def __init__(self, nvml: Any, handle: ctypes.c_void_p) -> None:
        self._nvml = nvml
        self._handle = handle
        self.utilization: list[float] = []
        self.memory: list[int] = []
        self._power: list[tuple[float, float]] = []
        self._energy: list[float] = []

    def sample(self) -> None:
        """Read all figures once."""
        utilization = _NvmlUtilization()
        if self._read("nvmlDeviceGetUtilizationRates", utilization):
            self.utilization.append(utilization.gpu / 100)
        memory = _NvmlMemory()
        if self._read("nvmlDeviceGetMemoryInfo", memory):
            self.memory.append(memory.used)
        power_mw = ctypes.c_uint()
        if self._read("nvmlDeviceGetPowerUsage", power_mw):
            self._power.append((time.monotonic(), power_mw.value / 1000))
        energy_mj = ctypes.c_ulonglong()
        if self._read("nvmlDeviceGetTotalEnergyConsumption", energy_mj):
            self._energy.append(energy_mj.value / 1000)

    def energy_j(self) -> float | None:
        """Return the energy from the first sample to the last.

        Without a counter of the GPU, it is power × time.
        """
        if len(self._energy) > 1:
            return self._energy[-1] - self._energy[0]
        if len(self._power) < 2:
            return None
        return sum(
            (before[1] + after[1]) / 2 * (after[0] - before[0])
            for before, after in zip(self._power, self._power[1:])  # noqa: B905
        )

    def _read(self, name: str, into: Any) -> bool:
        function = getattr(self._nvml, name, None)
        if function is None:
            return False
        return function(self._handle, ctypes.byref(into)) == _SUCCESS


def _count(nvml: Any) -> int:
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    return count.value


def _device(nvml: Any, name: str) -> ctypes.c_void_p | None:
    """Return the handle of a GPU by its number or UUID; None if it is not there."""
    handle = ctypes.c_void_p()
    if name.isdigit():
        code = nvml.nvmlDeviceGetHandleByIndex_v2(int(name), ctypes.byref(handle))
    else:
        code = nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
    return handle if code == _SUCCESS else None
