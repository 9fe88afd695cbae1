"""Reads GPUs with NVML, through nvidia-ml-py.

Each call opens NVML and closes it again. NVML lists the GPUs once, when it is opened,
so a process that keeps it open never sees a GPU that is added later. An open handle
also keeps its GPU from being removed, reset or switched to MIG. NVML counts how often
it was opened: nothing else in the process may keep it open, or changes stay unseen.

With the test suite's fake library a whole reading of 8 GPUs takes 0.4 ms, of which
opening and closing take 6 µs. A real driver adds its own time, not measured here; it is
long only if the driver unloads idle GPUs, which `nvidia-persistenced` prevents.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pynvml as untyped

from gpuyard.devices.gpu import (
    GpuProcess,
    GpuReading,
    LostGpu,
    SourceFailedError,
    SourceMissingError,
)

# nvidia-ml-py has no annotations, and types inferred from its code are wrong in places
pynvml: Any = untyped

_MIB = 1 << 20

# Errors that mean "this GPU or driver does not report this"; any other error means that
# the GPU is in trouble. INSUFFICIENT_SIZE: processes that started between the two calls
# of nvidia-ml-py outgrew its buffer.
_NOT_REPORTED = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_NO_DATA,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_INSUFFICIENT_SIZE,
}

_REMEDIES = {
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "load the NVIDIA kernel module (`modprobe nvidia`) or reinstall the driver"
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the driver was updated while in use: reboot, or reload its modules"
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: "give this user access to /dev/nvidia*",
}
_REMEDY = "run `nvidia-smi`, and look for `NVRM` in the kernel's log (`dmesg`)"
_RECOVERIES = {
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: (
        "reset the GPU (`nvidia-smi --gpu-reset`)"
    ),
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "reboot the host",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "end what uses it over NVLink",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: (
        "drain the GPU and reset it (`nvidia-smi --gpu-reset`)"
    ),
}
# Too little power, or too much heat. The first one is set beside each of the others,
# but not by every driver.
_HARDWARE_REASONS = (
    pynvml.nvmlClocksThrottleReasonHwSlowdown
    | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    | pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
)
_NO_INSTANCES = (
    "MIG mode is on without any instance: create some (`nvidia-smi mig -cgi … -C`) or"
    " turn it off"
)


@contextmanager
def session() -> Generator[None]:
    """NVML, opened for the length of the block with a new list of GPUs.

    Raises pynvml.NVMLError.
    """
    # Without the flag, opening fails on a host whose last GPU was removed.
    pynvml.nvmlInitWithFlags(pynvml.NVML_INIT_FLAG_NO_GPUS)
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def read_gpus() -> list[GpuReading | LostGpu]:
    """Every GPU in the driver's order; a GPU in MIG mode is replaced by its instances.

    Raises SourceMissingError without the library, SourceFailedError when NVML as a
    whole fails.
    """
    try:
        with session():
            driver = pynvml.nvmlSystemGetDriverVersion()
            readings: list[GpuReading | LostGpu] = []
            for index in range(pynvml.nvmlDeviceGetCount()):
                readings += _read_index(index, driver)
            return readings
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            raise SourceMissingError("no libnvidia-ml.so.1") from error
        raise SourceFailedError(
            f"NVML fails: {error}; {_REMEDIES.get(error.value, _REMEDY)}"
        ) from error


def _read_index(index: int, driver: str) -> list[GpuReading | LostGpu]:
    uuid = None
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        if not _mig_enabled(handle):
            return [_read_gpu(handle, handle, index, driver)]
        instances = [
            _read_gpu(instance, handle, index, driver)
            for instance in _mig_instances(handle)
        ]
        return instances or [LostGpu(uuid, index, _NO_INSTANCES)]
    except pynvml.NVMLError as error:
        return [LostGpu(uuid, index, str(error))]


def _read_gpu(
    handle: Any, physical: Any, index: int, driver: str
) -> GpuReading | LostGpu:
    """Read the GPU or MIG instance `handle`, which is on the GPU `physical`."""
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    is_mig = handle is not physical
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        capability = _value(pynvml.nvmlDeviceGetCudaComputeCapability, physical)
        usage = _value(pynvml.nvmlDeviceGetUtilizationRates, handle)
        milliwatts = _value(pynvml.nvmlDeviceGetPowerUsage, handle)
        ecc = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        volatile = pynvml.NVML_VOLATILE_ECC
        remapped = _value(pynvml.nvmlDeviceGetRemappedRows, physical)
        _, _, pending, failed = remapped or (0, 0, 0, 0)
        # The newer name of this function is not in older drivers.
        slowed_by = (
            _value(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, physical) or 0
        )
        return GpuReading(
            uuid=uuid,
            index=index,
            name=pynvml.nvmlDeviceGetName(handle),
            memory_total_mb=memory.total // _MIB,
            memory_free_mb=memory.free // _MIB,
            compute_capability="{}.{}".format(*capability) if capability else "",
            driver_version=driver,
            temperature_c=_value(
                pynvml.nvmlDeviceGetTemperature, physical, pynvml.NVML_TEMPERATURE_GPU
            ),
            utilization=None if usage is None else usage.gpu / 100,
            power_w=None if milliwatts is None else milliwatts / 1000,
            processes=_processes(handle),
            mig=is_mig,
            parent=pynvml.nvmlDeviceGetUUID(physical) if is_mig else "",
            instance=(
                _value(pynvml.nvmlDeviceGetGpuInstanceId, handle) if is_mig else None
            ),
            minor=_value(pynvml.nvmlDeviceGetMinorNumber, physical),
            compute_instance=(
                _value(pynvml.nvmlDeviceGetComputeInstanceId, handle)
                if is_mig
                else None
            ),
            ecc_uncorrected=_value(
                pynvml.nvmlDeviceGetTotalEccErrors, physical, ecc, volatile
            ),
            remap_pending=bool(pending),
            remap_failed=bool(failed),
            recovery=_recovery(physical),
            slowdown_c=_value(
                pynvml.nvmlDeviceGetTemperatureThreshold,
                physical,
                pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
            ),
            power_limited=bool(slowed_by & pynvml.nvmlClocksThrottleReasonSwPowerCap),
            hardware_slowed=bool(slowed_by & _HARDWARE_REASONS),
        )
    except pynvml.NVMLError as error:
        return LostGpu(uuid, index, str(error))


def _value(read: Callable[..., Any], *arguments: Any) -> Any:
    """The value of a call; None if this GPU or driver does not report it."""
    try:
        return read(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _NOT_REPORTED:
            return None
        raise


def _recovery(handle: Any) -> str | None:
    """What the driver asks for before the GPU is used again; None for nothing, or if it
    does not report that.
    """
    fields = _value(
        pynvml.nvmlDeviceGetFieldValues,
        handle,
        [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION],
    )
    if not fields or fields[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    action = int(fields[0].value.uiVal)
    return _RECOVERIES.get(action, f"recovery action {action}") if action else None


def _processes(handle: Any) -> tuple[GpuProcess, ...]:
    found: list[Any] = _value(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
    processes: list[GpuProcess] = []
    for process in found:
        used = process.usedGpuMemory
        memory_mb = None if used is None else used // _MIB
        processes.append(GpuProcess(process.pid, memory_mb))
    return tuple(processes)


def _mig_enabled(handle: Any) -> bool:
    try:
        mode = _value(pynvml.nvmlDeviceGetMigMode, handle)
    except pynvml.NVMLLibraryMismatchError:  # a driver from before MIG
        return False
    return mode is not None and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def _mig_instances(handle: Any) -> list[Any]:
    count = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    slots = (
        _value(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot)
        for slot in range(count)
    )
    return [instance for instance in slots if instance is not None]
