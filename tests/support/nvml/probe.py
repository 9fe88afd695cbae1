"""A long-lived process that discovers GPUs when told to: the fake NVML library is only
seen from a process's start.

Run as a program it answers each line on stdin (the timeout for `nvidia-smi`, in
seconds) with one JSON line.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpuyard.devices.discovery import Discovery, discover
from gpuyard.devices.gpu import GpuProcess, GpuReading, LostGpu


@dataclass(frozen=True)
class Look:
    """What one discovery found, and what it left behind in its process."""

    discovery: Discovery
    open_files: int
    nvml_left_open: bool


class Probe:
    """The process, as a context manager. `path` stands for its whole PATH."""

    def __init__(self, env: dict[str, str], path: Path) -> None:
        inherited = {
            key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"
        }
        self._env = (
            inherited
            | env
            | {"PATH": str(path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        )

    def __enter__(self) -> "Probe":
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self._env,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def look(self, smi_timeout_s: float = 10.0) -> Look:
        """Discover once. Fails when the process dies of it."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{smi_timeout_s}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the discovering process died"
        return _look(json.loads(line))

    def discover(self, smi_timeout_s: float = 10.0) -> Discovery:
        """What `discover()` returns in the process."""
        return self.look(smi_timeout_s).discovery


def _look(answer: dict[str, Any]) -> Look:
    found = answer.pop("discovery")
    gpus = tuple(
        GpuReading(
            **gpu
            | {
                "processes": tuple(
                    GpuProcess(**process) for process in gpu["processes"]
                ),
                "drm": tuple(gpu["drm"]),
            }
        )
        for gpu in found.pop("gpus")
    )
    lost = tuple(LostGpu(**gpu) for gpu in found.pop("lost"))
    return Look(Discovery(gpus, lost, **found), **answer)


def _nvml_is_open() -> bool:
    import pynvml

    try:
        pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError_Uninitialized:
        return False
    return True


def _serve() -> None:
    for line in sys.stdin:
        discovery = discover(float(line))
        open_files = len(list(Path("/proc/self/fd").iterdir()))
        look = Look(discovery, open_files, _nvml_is_open())
        sys.stdout.write(json.dumps(asdict(look)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
