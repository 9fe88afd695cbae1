"""Reads GPUs with AMD's library, through `amdsmi`, the Python package that comes with
ROCm.

It is imported only where it is installed. No such GPU was available, so this is tested
with a fake package of the same functions. Each call opens the library and closes it
again, as with NVML. Some values differ by version and card: a value that is missing or
"N/A" becomes None.
"""

from collections.abc import Callable
from typing import Any

from gpuyard.devices.gpu import (
    GpuProcess,
    GpuReading,
    LostGpu,
    SourceFailedError,
    SourceMissingError,
)

_MIB = 1 << 20
# Errors that mean "this card or version does not report this"; any other error means
# that the GPU is in trouble.
_NOT_REPORTED = (
    "NOT_SUPPORTED",
    "NOT_YET_IMPLEMENTED",
    "NO_PERM",
    "NO_DATA",
    "UNEXPECTED_DATA",
)
_REMEDY = "run `amd-smi list`, and look for `amdgpu` in the kernel's log (`dmesg`)"


def read_gpus() -> list[GpuReading | LostGpu]:
    """Every GPU in the driver's order.

    Raises SourceMissingError without the package, SourceFailedError when the library as
    a whole fails.
    """
    try:
        import amdsmi as untyped  # late and optional: ROCm brings it  # pyright: ignore[reportMissingImports]
    # Without ROCm's library the import fails in any of these ways.
    except (ImportError, OSError, KeyError) as error:
        raise SourceMissingError("no amdsmi") from error
    smi: Any = untyped
    try:
        smi.amdsmi_init()
        try:
            return [
                _read_gpu(smi, handle, index)
                for index, handle in enumerate(smi.amdsmi_get_processor_handles())
            ]
        finally:
            smi.amdsmi_shut_down()
    except smi.AmdSmiException as error:
        raise SourceFailedError(f"AMD SMI fails: {error}; {_REMEDY}") from error


def _read_gpu(smi: Any, handle: Any, index: int) -> GpuReading | LostGpu:
    uuid = None
    try:
        asic = _dict(smi, smi.amdsmi_get_gpu_asic_info, handle)
        uuid = _uuid(smi, handle, asic)
        if uuid is None:
            reason = "it does not report its unique number, which programs need"
            return LostGpu(None, index, reason)
        memory = smi.amdsmi_get_gpu_vram_usage(handle)  # in MiB
        activity = _dict(smi, smi.amdsmi_get_gpu_activity, handle)
        power = _dict(smi, smi.amdsmi_get_power_info, handle)
        ecc = _dict(smi, smi.amdsmi_get_gpu_total_ecc_count, handle)
        driver = _dict(smi, smi.amdsmi_get_gpu_driver_info, handle)
        load = _number(activity.get("gfx_activity"))
        power_w = _number(power.get("average_socket_power"))
        if not power_w:
            power_w = _number(power.get("current_socket_power"))
        return GpuReading(
            uuid=uuid,
            index=index,
            name=str(asic.get("market_name") or "AMD GPU"),
            memory_total_mb=int(memory["vram_total"]),
            memory_free_mb=int(memory["vram_total"]) - int(memory["vram_used"]),
            compute_capability="",  # a notion of CUDA's
            driver_version=str(driver.get("driver_version") or ""),
            temperature_c=_temperature(smi, handle, "CURRENT"),
            utilization=None if load is None else load / 100,
            power_w=power_w,
            processes=_processes(smi, handle),
            mig=False,
            ecc_uncorrected=_integer(ecc.get("uncorrectable_count")),
            slowdown_c=_temperature(smi, handle, "CRITICAL"),
            drm=_drm(smi, handle),
        )
    except smi.AmdSmiException as error:
        return LostGpu(uuid, index, str(error))


def _uuid(smi: Any, handle: Any, asic: dict[str, Any]) -> str | None:
    """The GPU's name in ROCm's runtime (ROCR_VISIBLE_DEVICES); older versions report
    only its serial number.
    """
    read = getattr(smi, "amdsmi_get_gpu_enumeration_info", None)
    if read:
        name = str(_dict(smi, read, handle).get("hip_uuid") or "")
        if name.startswith("GPU-"):
            return name
    serial = str(asic.get("asic_serial") or "").lower().removeprefix("0x")
    if serial and set(serial) <= set("0123456789abcdef"):
        return f"GPU-{serial.zfill(16)}"
    return None


def _drm(smi: Any, handle: Any) -> tuple[int, ...]:
    """The minor numbers of its device files below /dev/dri; older versions report
    none.
    """
    read = getattr(smi, "amdsmi_get_gpu_enumeration_info", None)
    found = _dict(smi, read, handle) if read else {}
    minors = [_integer(found.get(name)) for name in ("drm_render", "drm_card")]
    return tuple(minor for minor in minors if minor is not None)


def _dict(smi: Any, read: Callable[..., Any], handle: Any) -> dict[str, Any]:
    """The values of a call; empty if this card or version does not report them."""
    return dict(_value(smi, read, handle) or {})


def _value(smi: Any, read: Callable[..., Any], *arguments: Any) -> Any:
    """The value of a call; None if this card or version does not report it."""
    try:
        return read(*arguments)
    except smi.AmdSmiLibraryException as error:
        statuses = [f"AMDSMI_STATUS_{name}" for name in _NOT_REPORTED]
        codes = [getattr(smi.amdsmi_wrapper, status, None) for status in statuses]
        if error.get_error_code() not in codes:
            raise
        return None


def _temperature(smi: Any, handle: Any, metric: str) -> int | None:
    """The temperature in °C of the hottest spot; of the edge on a card without that
    sensor.
    """
    for sensor in ("HOTSPOT", "EDGE"):
        kind = getattr(smi.AmdSmiTemperatureType, sensor)
        what = getattr(smi.AmdSmiTemperatureMetric, metric)
        value = _value(smi, smi.amdsmi_get_temp_metric, handle, kind, what)
        degrees = _integer(value)
        if degrees:
            return degrees
    return None


def _processes(smi: Any, handle: Any) -> tuple[GpuProcess, ...]:
    found: list[dict[str, Any]] = (
        _value(smi, smi.amdsmi_get_gpu_process_list, handle) or []
    )
    processes: list[GpuProcess] = []
    for process in found:
        memory = _integer(process.get("mem"))
        memory_mb = memory // _MIB if memory else None
        processes.append(GpuProcess(int(process["pid"]), memory_mb))
    return tuple(processes)


def _number(value: Any) -> float | None:
    """The value if it is a number."""
    return float(value) if isinstance(value, int | float) else None


def _integer(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)
