"""A real GPU: the proofs of memory and speed, and a job that uses it.

It needs an NVIDIA GPU, and runs with an interpreter that has PyTorch.
"""

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.bench import scaled, serving, timed
from benchmarks.figures import Figure, alternate
from gpuyard.devices.gpu import GpuReading
from gpuyard.devices.nvml import read_gpus
from gpuyard.domain.gpus import classify
from gpuyard.verification.claims import vram_gb_to_ask
from gpuyard.verification.solver import probe_gpu
from tests.support.instance import TestInstance
from tests.support.wait import wait_until

GROUP = "gpu"
# What an honest executor does may be 1.3 times as slow as what a cheater could write.
PROOF = 1.3
USE = "import torch; torch.ones(1, device='cuda').sum().item()"


def measure(scale: float) -> Iterator[Figure]:
    """The probes first, since a job gets the GPU for itself."""
    speeds: list[Any] = []
    for share in (0.25, 1.0):
        yield _proof(share, scaled(3, scale, 1), speeds)
    # They are the floors of the rest, and have none themselves.
    for name, field, unit in (
        ("matrix products", "tflops", "TFLOP/s"),
        ("copies", "bandwidth_gbs", "GB/s"),
    ):
        values = [speed[field] for speed in speeds]
        yield Figure(GROUP, f"{speeds[0]['device']}: {name}", values, unit)
    yield _job(scaled(10, scale, 3))


def _proof(share: float, rounds: int, speeds: list[Any]) -> Figure:
    """The memory proof against the time in which that much memory is moved, at the
    speed that is measured after it and added to `speeds`.
    """
    gpu = next(one for one in read_gpus() if isinstance(one, GpuReading))
    gpu_class = classify(gpu.name, gpu.memory_total_mb)
    assert gpu_class, f"the catalogue lacks {gpu.name}"
    asked = vram_gb_to_ask(gpu_class) * share
    # It is written once, read and written in each layer, and read in each sweep.
    passes = 1 + 2 * probe_gpu.LAYERS + probe_gpu.SWEEPS
    proofs, found = alternate(
        rounds,
        lambda: _figures(f"probe_gpu.vram(nonce, {asked})"),
        lambda: _figures("probe_gpu.speed(nonce)"),
    )
    speeds += found
    gigabytes = proofs[0]["gigabytes"]
    moved_gb = passes * gigabytes * 2**30 / 1e9
    return Figure(
        GROUP,
        f"memory proof of {gigabytes:.1f} GiB",
        [proof["fill_s"] + proof["read_s"] for proof in proofs],
        "s",
        PROOF,
        [moved_gb / speed["bandwidth_gbs"] for speed in found],
        f"{passes} passes over it at the speed of copies",
    )


def _figures(call: str) -> Any:
    """What a call of the probes gives, in a process of its own."""
    program = (
        "import json; from gpuyard.verification.solver import probe_gpu;"
        f" nonce = {secrets.token_hex(16)!r}; print(json.dumps({call}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def _job(times: int) -> Figure:
    """`gpuyard run` of a program that uses the GPU once, and the program by itself."""
    words = [sys.executable, "-c", USE]
    with serving() as (instance, _):
        wait_until(lambda: instance.json("gpus")["items"], what="the GPUs")
        values, floors = alternate(
            times,
            lambda: timed(lambda: _run(instance, words)),
            lambda: timed(lambda: _alone(words)),
        )
    return Figure(
        GROUP,
        "`gpuyard run --gpus 1` of a program that uses it",
        values,
        "s",
        None,
        floors,
        "the program by itself",
    )


def _run(instance: TestInstance, words: list[str]) -> None:
    instance.ok("run", "--gpus", "1", "--", *words)


def _alone(words: list[str]) -> None:
    subprocess.run(words, check=True)
