"""Look at a node before a study runs there: `python probe.py --config exp_config.json`.

Writes `probe.json` into the folder of the job. Needs nothing but the standard library.
"""

import argparse
import ctypes
import importlib
import json
import os
import platform
import socket
import sys
from pathlib import Path
from typing import Any

RESULT = "probe.json"


def look(config: dict[str, Any]) -> dict[str, Any]:
    """Return what a study needs to know of this node.

    `missing` has, for each module that cannot be imported, why. `gpus` are the names of
    the GPUs, as far as NVIDIA's driver tells.
    """
    missing: dict[str, str] = {}
    for name in config["imports"]:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001  # a broken package raises all kinds of things
            missing[name] = f"{type(error).__name__}: {error}"
    has_model = {
        path: (Path(path) / "config.json").is_file() for path in config["models"]
    }
    return {
        "host": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "missing": missing,
        "models": has_model,
        "gpus": gpu_names(),
    }


def gpu_names(library: str = "libnvidia-ml.so.1") -> list[str]:
    """Return the names of the GPUs that NVML lists; none where there is no NVML."""
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return []
    count = ctypes.c_uint()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return []
    names: list[str] = []
    for index in range(count.value):
        handle = ctypes.c_void_p()
        name = ctypes.create_string_buffer(96)
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
            continue
        if not nvml.nvmlDeviceGetName(handle, name, len(name)):
            names.append(name.value.decode(errors="replace"))
    return names


def main() -> int:
    """Look, and write what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", type=Path, required=True)
    # A launcher may add this one.
    parser.add_argument("--local_rank", "--local-rank", help=argparse.SUPPRESS)
    path: Path = parser.parse_args().config
    found = look(json.loads(path.read_text(encoding="utf-8")))
    target = path.parent / RESULT
    fresh = target.with_name(f".{RESULT}.{os.getpid()}")
    fresh.write_text(json.dumps(found), encoding="utf-8")
    fresh.replace(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
