"""What an executor claims of its GPUs: which there are, and proof of their memory and speed where it is asked for."""

import ctypes
import hashlib
import os
from typing import Any, Callable

_LIBRARY = "libnvidia-ml.so.1"
_TEXT = 96


class NvmlError(Exception):
    """NVML answers a call with an error."""


def asked(claims: dict[str, Any]) -> bool:
    """Whether an order asks for any claim."""
    return any(claims.get(name) for name in ("inventory", "vram_gb", "speed"))


def nonce_of(check: str, seed: int) -> str:
    """What a check's proofs start from, known to nobody before the seed is."""
    return hashlib.sha256(f"{check}/{seed}".encode()).hexdigest()


def claims(wanted: dict[str, Any]) -> dict[str, Any]:
    """`{"inventory", "vram", "speed"}`, as far as the order asks for them; what fails says `{"failed": why}`."""
    found: dict[str, Any] = {}
    nonce = str(wanted.get("nonce", ""))
    if wanted.get("inventory"):
        found["inventory"] = inventory()
    if wanted.get("vram_gb"):
        found["vram"] = _tried(lambda probe: probe.vram(nonce, wanted["vram_gb"]))
    if wanted.get("speed"):
        found["speed"] = _tried(lambda probe: probe.speed(nonce))
    return found


def _tried(probe: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    try:
        from . import probe_gpu  # pyright: ignore

        return probe(probe_gpu)
    except Exception as error:  # noqa: BLE001  # drivers and libraries raise all kinds of things
        return {"failed": f"{type(error).__name__}: {error}"[:500]}


def inventory() -> list[dict[str, Any]]:
    """The GPUs that this job may use: name, memory_mb, uuid, driver, compute_capability ("8.6"). None is no error."""
    try:
        nvml = ctypes.CDLL(_LIBRARY)
        _call(nvml, "nvmlInit_v2")
    except (OSError, NvmlError):
        return []
    found: list[dict[str, Any]] = []
    for place in _places(nvml):
        try:
            found.append(_gpu(nvml, place))
        except NvmlError:
            continue  # A GPU that does not answer can prove nothing.
    nvml.nvmlShutdown()
    return found


def _places(nvml: ctypes.CDLL) -> list[str]:
    """Indices or UUIDs of what CUDA would show: another job's GPU on the same host is not this executor's."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    return [str(index) for index in range(count.value)]


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def _gpu(nvml: ctypes.CDLL, place: str) -> dict[str, Any]:
    handle, memory = ctypes.c_void_p(), _Memory()
    if place.isdigit():
        _call(nvml, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(int(place)), ctypes.byref(handle))
    else:
        _call(nvml, "nvmlDeviceGetHandleByUUID", place.encode(), ctypes.byref(handle))
    _call(nvml, "nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
    return {
        "name": _text(nvml, "nvmlDeviceGetName", handle),
        "memory_mb": memory.total >> 20,
        "uuid": _text(nvml, "nvmlDeviceGetUUID", handle),
        "driver": _text(nvml, "nvmlSystemGetDriverVersion"),
        "compute_capability": _capability(nvml, handle),
    }


def _capability(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> str:
    """Empty where the driver does not tell, as of a slice of a GPU."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    try:
        _call(nvml, "nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
    except NvmlError:
        return ""
    return f"{major.value}.{minor.value}"


def _text(nvml: ctypes.CDLL, function: str, *arguments: Any) -> str:
    buffer = ctypes.create_string_buffer(_TEXT)
    _call(nvml, function, *arguments, buffer, ctypes.c_uint(_TEXT))
    return buffer.value.decode("utf-8", "replace")


def _call(nvml: ctypes.CDLL, function: str, *arguments: Any) -> None:
    try:
        code = getattr(nvml, function)(*arguments)
    except AttributeError as error:
        raise NvmlError(f"this NVML has no {function}") from error
    if code:
        raise NvmlError(f"{function} answers {code}")
