"""AMD's package, as far as gpuyard asks it, over a JSON file named by FAKE_AMDSMI:
{"gpus": [{...}], "init": code}.

A GPU has `uuid`, `serial`, `name`, `total`, `used` (MiB), `hot`, `critical` (°C),
`load` (%), `watts`, `ecc`, `processes` [[pid, bytes]]; what is missing it does not
tell, and `error` makes each question fail with that code.
"""

import json
import os
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

amdsmi_wrapper = SimpleNamespace(AMDSMI_STATUS_NOT_SUPPORTED=2)
AmdSmiTemperatureType = Enum("AmdSmiTemperatureType", ["EDGE", "HOTSPOT"])
AmdSmiTemperatureMetric = Enum("AmdSmiTemperatureMetric", ["CURRENT", "CRITICAL"])
Gpu = dict[str, Any]
_open = 0


class AmdSmiException(Exception):  # noqa: N818  (its name there)
    pass


class AmdSmiLibraryException(AmdSmiException):
    def __init__(self, code: int) -> None:
        super().__init__(f"Error code: {code}")
        self._code = code

    def get_error_code(self) -> int:
        return self._code


def _state() -> dict[str, Any]:
    return json.loads(Path(os.environ["FAKE_AMDSMI"]).read_text())


def _tell(gpu: Gpu, *names: str) -> list[Any]:
    assert _open, "it was not opened"
    if "error" in gpu:
        raise AmdSmiLibraryException(gpu["error"])
    if any(name not in gpu for name in names):
        raise AmdSmiLibraryException(amdsmi_wrapper.AMDSMI_STATUS_NOT_SUPPORTED)
    return [gpu[name] for name in names]


def amdsmi_init() -> None:
    global _open
    if code := _state().get("init"):
        raise AmdSmiLibraryException(code)
    _open += 1


def amdsmi_shut_down() -> None:
    global _open
    _open -= 1


def amdsmi_get_processor_handles() -> list[Gpu]:
    return _state()["gpus"]


def amdsmi_get_gpu_enumeration_info(gpu: Gpu) -> dict[str, Any]:
    nodes = {name: gpu.get(name, "N/A") for name in ("drm_render", "drm_card")}
    return {"hip_uuid": _tell(gpu, "uuid")[0], **nodes}


def amdsmi_get_gpu_asic_info(gpu: Gpu) -> dict[str, Any]:
    _tell(gpu)
    return {"market_name": gpu.get("name", ""), "asic_serial": gpu.get("serial", "N/A")}


def amdsmi_get_gpu_vram_usage(gpu: Gpu) -> dict[str, Any]:
    total, used = _tell(gpu, "total", "used")
    return {"vram_total": total, "vram_used": used}


def amdsmi_get_gpu_activity(gpu: Gpu) -> dict[str, Any]:
    return {"gfx_activity": _tell(gpu, "load")[0]}


def amdsmi_get_power_info(gpu: Gpu) -> dict[str, Any]:
    return {
        "average_socket_power": "N/A",
        "current_socket_power": _tell(gpu, "watts")[0],
    }


def amdsmi_get_gpu_total_ecc_count(gpu: Gpu) -> dict[str, Any]:
    return {"correctable_count": 0, "uncorrectable_count": _tell(gpu, "ecc")[0]}


def amdsmi_get_gpu_driver_info(gpu: Gpu) -> dict[str, Any]:
    _tell(gpu)
    return {"driver_name": "amdgpu", "driver_version": "6.10.5"}


def amdsmi_get_temp_metric(gpu: Gpu, kind: Enum, metric: Enum) -> int:
    name = "hot" if metric is AmdSmiTemperatureMetric.CURRENT else "critical"
    return _tell(
        gpu, name if kind is AmdSmiTemperatureType.HOTSPOT else f"edge_{name}"
    )[0]


def amdsmi_get_gpu_process_list(gpu: Gpu) -> list[dict[str, Any]]:
    return [{"pid": pid, "mem": size} for pid, size in _tell(gpu, "processes")[0]]
