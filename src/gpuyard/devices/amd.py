"""GPUs as AMD's library tells of them, through `amdsmi`, the Python package that comes with ROCm.

It is imported only where it is installed; no such GPU was at hand, so this is tested against a fake package of the
same functions. Each call opens the library and closes it again, as with NVML. Some values differ by version and card:
what is not told, or told as "N/A", is None.
"""

from collections.abc import Callable
from typing import Any

from gpuyard.devices.gpu import GpuProcess, GpuReading, LostGpu, SourceFailedError, SourceMissingError

_MIB = 1 << 20
# Answers that say "this card or version does not tell you"; any other error says that the GPU is in trouble.
_UNTOLD = ("NOT_SUPPORTED", "NOT_YET_IMPLEMENTED", "NO_PERM", "NO_DATA", "UNEXPECTED_DATA")
_REMEDY = "run `amd-smi list`, and look for `amdgpu` in the kernel's log (`dmesg`)"


def read_gpus() -> list[GpuReading | LostGpu]:
    """Every GPU in the driver's order.

    Raises SourceMissingError without the package, SourceFailedError when the library as a whole fails.
    """
    try:
        import amdsmi as untyped  # late and optional: ROCm brings it  # pyright: ignore[reportMissingImports]
    except (ImportError, OSError, KeyError) as error:  # without ROCm's library importing it fails in any of these ways
        raise SourceMissingError("no amdsmi") from error
    smi: Any = untyped
    try:
        smi.amdsmi_init()
        try:
            return [_read_gpu(smi, handle, index) for index, handle in enumerate(smi.amdsmi_get_processor_handles())]
        finally:
            smi.amdsmi_shut_down()
    except smi.AmdSmiException as error:
        raise SourceFailedError(f"AMD SMI fails: {error}; {_REMEDY}") from error


def _read_gpu(smi: Any, handle: Any, index: int) -> GpuReading | LostGpu:
    uuid = None
    try:
        asic = _told(smi, smi.amdsmi_get_gpu_asic_info, handle)
        uuid = _uuid(smi, handle, asic)
        if uuid is None:
            return LostGpu(None, index, "it does not tell its unique number, by which programs are given it")
        memory = smi.amdsmi_get_gpu_vram_usage(handle)  # in MiB
        activity = _told(smi, smi.amdsmi_get_gpu_activity, handle)
        power = _told(smi, smi.amdsmi_get_power_info, handle)
        ecc = _told(smi, smi.amdsmi_get_gpu_total_ecc_count, handle)
        driver = _told(smi, smi.amdsmi_get_gpu_driver_info, handle)
        load = _number(activity.get("gfx_activity"))
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
            power_w=_number(power.get("average_socket_power")) or _number(power.get("current_socket_power")),
            processes=_processes(smi, handle),
            mig=False,
            ecc_uncorrected=_integer(ecc.get("uncorrectable_count")),
            slowdown_c=_temperature(smi, handle, "CRITICAL"),
        )
    except smi.AmdSmiException as error:
        return LostGpu(uuid, index, str(error))


def _uuid(smi: Any, handle: Any, asic: dict[str, Any]) -> str | None:
    """The name by which ROCm's runtime knows the GPU (ROCR_VISIBLE_DEVICES); older versions tell only its number."""
    enumerate_ = getattr(smi, "amdsmi_get_gpu_enumeration_info", None)
    name = str((_told(smi, enumerate_, handle) if enumerate_ else {}).get("hip_uuid") or "")
    serial = str(asic.get("asic_serial") or "").lower().removeprefix("0x")
    if name.startswith("GPU-"):
        return name
    return f"GPU-{serial.zfill(16)}" if serial and set(serial) <= set("0123456789abcdef") else None


def _told(smi: Any, read: Callable[..., Any], handle: Any) -> dict[str, Any]:
    """The values that the call answers; none where this card or version does not tell them."""
    return dict(_value(smi, read, handle) or {})


def _value(smi: Any, read: Callable[..., Any], *arguments: Any) -> Any:
    """What the call answers, or None where this card or version does not tell it."""
    try:
        return read(*arguments)
    except smi.AmdSmiLibraryException as error:
        untold = (getattr(smi.amdsmi_wrapper, f"AMDSMI_STATUS_{name}", None) for name in _UNTOLD)
        if error.get_error_code() not in untold:
            raise
        return None


def _temperature(smi: Any, handle: Any, metric: str) -> int | None:
    """In °C, where it is hottest; a card without that sensor tells that of its edge."""
    for sensor in ("HOTSPOT", "EDGE"):
        kind, what = getattr(smi.AmdSmiTemperatureType, sensor), getattr(smi.AmdSmiTemperatureMetric, metric)
        if value := _integer(_value(smi, smi.amdsmi_get_temp_metric, handle, kind, what)):
            return value
    return None


def _processes(smi: Any, handle: Any) -> tuple[GpuProcess, ...]:
    found: list[dict[str, Any]] = _value(smi, smi.amdsmi_get_gpu_process_list, handle) or []
    return tuple(GpuProcess(int(p["pid"]), int(p["mem"]) // _MIB if _number(p.get("mem")) else None) for p in found)


def _number(value: Any) -> float | None:
    """A number, where it is one."""
    return float(value) if isinstance(value, int | float) else None


def _integer(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)
