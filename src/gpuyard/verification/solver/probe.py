"""Claims about the GPUs: an inventory, and proof of memory and speed if asked for."""

import ctypes
import hashlib
import os
from typing import Any, Callable, Optional

from . import attestation

_LIBRARY = "libnvidia-ml.so.1"
_TEXT = 96


class NvmlError(Exception):
    """NVML reported an error."""


def asked(claims: dict[str, Any]) -> bool:
    """Whether an order asks for any claim."""
    return any(claims.get(name) for name in ("inventory", "vram_gb", "speed"))


def nonce_of(
    check: str,
    seed: int,
    sha256: str,
    fingerprints: Optional[str] = None,
    salt: str = "",
) -> str:
    """The nonce of a check's claims, in hexadecimal.

    It follows from the hash that was sent of the answers, and from that of their
    fingerprints if they were asked for. So no claim can be made before the answers are
    fixed: else the processors of a host could make the proofs while its GPU answers.
    `salt`: what the hub sent when the hash had come, so that who keeps its hash back
    gains no time either; empty without a stream.
    """
    fixed = "/".join((check, str(seed), sha256, fingerprints or "", salt))
    return hashlib.sha256(fixed.encode()).hexdigest()


def prepare(wanted: dict[str, Any]) -> None:
    """Do now what the proofs need and what needs no nonce, so that it does not take
    their time. What fails here fails again, and is told, in `claims`.
    """
    if wanted.get("vram_gb") or wanted.get("speed"):
        _tried(lambda proofs: proofs.prepare())


def claims(wanted: dict[str, Any]) -> dict[str, Any]:
    """Make the claims that the order asks for: `{"inventory", "vram", "speed"}`.

    A claim that fails is `{"failed": why}`.
    """
    found: dict[str, Any] = {}
    nonce = str(wanted.get("nonce", ""))
    if wanted.get("inventory"):
        found["inventory"] = inventory(nonce)
    if wanted.get("vram_gb"):
        size = (wanted["vram_gb"], wanted["passes"])
        found["vram"] = _tried(lambda proofs: proofs.vram(nonce, *size))
    if wanted.get("speed"):
        work: dict[str, int] = wanted["speed"]
        found["speed"] = _tried(
            lambda proofs: proofs.speed(nonce, work["size"], work["steps"])
        )
    return found


def _tried(prove: Callable[[Any], Any]) -> Any:
    try:
        from . import proofs  # pyright: ignore

        return prove(proofs)
    except Exception as error:  # noqa: BLE001  # drivers can raise anything
        return {"failed": f"{type(error).__name__}: {error}"[:500]}


def inventory(nonce: str = "") -> list[dict[str, Any]]:
    """The GPUs of this job; an empty list without any.

    Each has name, memory_mb, uuid, driver and compute_capability ("8.6"); and, where
    the GPU can and there is a nonce (64 digits), what it attests for that.
    """
    try:
        nvml = ctypes.CDLL(_LIBRARY)
        _call(nvml, "nvmlInit_v2")
    except (OSError, NvmlError):
        return []
    found: list[dict[str, Any]] = []
    for place in _places(nvml):
        try:
            found.append(_gpu(nvml, place, bytes.fromhex(nonce)))
        except NvmlError:
            continue  # a GPU that does not answer proves nothing
    nvml.nvmlShutdown()
    return found


def _places(nvml: ctypes.CDLL) -> list[str]:
    """Indices or UUIDs of the GPUs that CUDA shows to this job.

    Other GPUs of the host are not this executor's.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    return [str(index) for index in range(count.value)]


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def _gpu(nvml: ctypes.CDLL, place: str, nonce: bytes) -> dict[str, Any]:
    handle = ctypes.c_void_p()
    memory = _Memory()
    if place.isdigit():
        _call(
            nvml,
            "nvmlDeviceGetHandleByIndex_v2",
            ctypes.c_uint(int(place)),
            ctypes.byref(handle),
        )
    else:
        _call(nvml, "nvmlDeviceGetHandleByUUID", place.encode(), ctypes.byref(handle))
    _call(nvml, "nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
    signed = None
    if len(nonce) == attestation.NONCE_BYTES:
        signed = attestation.attestation(nvml, handle, nonce)
    found = {"attestation": signed} if signed else {}
    return {
        **found,
        "name": _text(nvml, "nvmlDeviceGetName", handle),
        "memory_mb": memory.total >> 20,
        "uuid": _text(nvml, "nvmlDeviceGetUUID", handle),
        "driver": _text(nvml, "nvmlSystemGetDriverVersion"),
        "compute_capability": _capability(nvml, handle),
    }


def _capability(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> str:
    """Empty when the driver does not report it, as for a slice of a GPU."""
    major = ctypes.c_int()
    minor = ctypes.c_int()
    try:
        _call(
            nvml,
            "nvmlDeviceGetCudaComputeCapability",
            handle,
            ctypes.byref(major),
            ctypes.byref(minor),
        )
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
