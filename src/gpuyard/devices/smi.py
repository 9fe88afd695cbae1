"""Reads GPUs from the output of `nvidia-smi`, if NVML cannot be loaded or does not
match the driver.
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress

from gpuyard.config.private_environment import public_environment
from gpuyard.devices.gpu import (
    GpuReading,
    LostGpu,
    SourceFailedError,
    SourceMissingError,
)

QUERY = (
    "uuid",
    "index",
    "name",
    "memory.total",
    "memory.free",
    "compute_cap",
    "driver_version",
    "temperature.gpu",
    "utilization.gpu",
    "power.draw",
)
TIMEOUT_S = 10.0

_NO_GPUS = "No devices were found"
_LOST_LINE = re.compile(r"Unable to determine the device handle|GPU is lost")
_REMEDY = "run `nvidia-smi` by hand, and look for `NVRM` in the kernel's log (`dmesg`)"


def read_gpus(timeout_s: float = TIMEOUT_S) -> list[GpuReading | LostGpu]:
    """Every GPU that `nvidia-smi` lists. It reports neither processes nor MIG
    instances: a GPU in MIG mode is shown as a whole.

    Raises SourceMissingError without the program, SourceFailedError when it takes
    longer than `timeout_s` seconds or prints nothing that can be read.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        raise SourceMissingError("no nvidia-smi")
    return parse(_run(program, timeout_s))


def parse(output: str) -> list[GpuReading | LostGpu]:
    """Read the output of `nvidia-smi --query-gpu=… --format=csv,noheader,nounits`.

    A GPU that has fallen off the bus has a sentence in place of its row, and warnings
    follow the rows. So sentences are a failure only if there is no row at all.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    parsed = [_parse_line(line) for line in lines]
    found = [gpu for gpu in parsed if gpu is not None]
    if found or _NO_GPUS in output:
        return found
    printed = repr(lines[0][:200]) if lines else "nothing"
    raise SourceFailedError(f"nvidia-smi printed {printed}; {_REMEDY}")


def _run(program: str, timeout_s: float) -> str:
    """The program's stdout and stderr together, because its errors come on either."""
    command = [
        program,
        f"--query-gpu={','.join(QUERY)}",
        "--format=csv,noheader,nounits",
    ]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            env=public_environment(),
            start_new_session=True,
        )
    except OSError as error:
        raise SourceFailedError(f"{program} cannot be started: {error}") from error
    try:
        return process.communicate(timeout=timeout_s)[0]
    except subprocess.TimeoutExpired as error:
        _kill(process)
        raise SourceFailedError(
            f"nvidia-smi gave no answer in {timeout_s:g} s; {_REMEDY}"
        ) from error


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill the process and its children, and wait only briefly: inside the driver it
    may be stuck and cannot die.
    """
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1)
    if process.stdout is not None:
        process.stdout.close()


def _parse_line(line: str) -> GpuReading | LostGpu | None:
    """A GPU from its row, or from a sentence about a lost one; None for any other
    line.
    """
    values = [value.strip() for value in line.split(",")]
    if len(values) != len(QUERY) or not values[0].startswith("GPU-"):
        return LostGpu(None, None, line) if _LOST_LINE.search(line) else None
    row: dict[str, str] = dict(zip(QUERY, values, strict=True))
    index = _number(row["index"])
    total_mb = _number(row["memory.total"])
    free_mb = _number(row["memory.free"])
    if index is None or total_mb is None or free_mb is None:
        return _unreadable(row)
    degrees = _number(row["temperature.gpu"])
    percent = _number(row["utilization.gpu"])
    capability = row["compute_cap"]
    return GpuReading(
        uuid=row["uuid"],
        index=int(index),
        name=row["name"],
        memory_total_mb=int(total_mb),
        memory_free_mb=int(free_mb),
        compute_capability="" if _number(capability) is None else capability,
        driver_version=row["driver_version"],
        temperature_c=None if degrees is None else int(degrees),
        utilization=None if percent is None else percent / 100,
        power_w=_number(row["power.draw"]),
        processes=(),
        mig=False,
    )


def _unreadable(row: Mapping[str, str]) -> LostGpu:
    """A GPU of whose index and memory something is not known."""
    index = _number(row["index"])
    needed = (row["index"], row["memory.total"], row["memory.free"])
    shown = next(value for value in needed if _number(value) is None)
    return LostGpu(
        row["uuid"],
        None if index is None else int(index),
        f"nvidia-smi shows {shown} for it",
    )


def _number(text: str) -> float | None:
    """The number; None for "[N/A]", "[Not Supported]", "[GPU is lost]", "[Unknown
    Error]" and the like.
    """
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None
