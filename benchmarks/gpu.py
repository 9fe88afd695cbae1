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
from gpuyard.domain.gpus import GPUClass, classify
from gpuyard.verification.proof_sizes import (
    PRODUCT_SIZE,
    products_to_ask,
    vram_gb_to_ask,
)
from gpuyard.verification.solver import memory
from tests.support.instance import TestInstance
from tests.support.wait import wait_until

GROUP = "gpu"
# What an honest executor does may be 1.3 times as slow as what a cheater could write.
PROOF = 1.3
USE = "import torch; torch.ones(1, device='cuda').sum().item()"


def measure(scale: float) -> Iterator[Figure]:
    """The proofs first, since a job gets the GPU for itself."""
    for share in (0.25, 1.0):
        yield _memory_proof(share, scaled(3, scale, 1))
    yield _product_proof(scaled(3, scale, 1))
    yield _job(scaled(10, scale, 3))


def _memory_proof(share: float, rounds: int) -> Figure:
    """The memory proof against the time in which that much memory is copied."""
    asked = vram_gb_to_ask(_gpu_class()) * share
    # It is written once, then read and written in each pass.
    passes = 1 + 2 * memory.FEWEST_PASSES
    proofs, floors = alternate(
        rounds,
        lambda: _figures(f"timed(lambda: proofs.vram(nonce, {asked}))"),
        lambda: _figures("copy_gbs()"),
    )
    moved_gb = passes * asked * 2**30 / 1e9
    return Figure(
        GROUP,
        f"memory proof of {asked:.1f} GiB",
        proofs,
        "s",
        PROOF,
        [moved_gb / speed for speed in floors],
        f"{passes} passes over it at the speed of copies",
    )


def _product_proof(rounds: int) -> Figure:
    """The chain of products against as many products alone."""
    steps = products_to_ask(_gpu_class())
    proofs, floors = alternate(
        rounds,
        lambda: _figures(
            f"timed(lambda: proofs.speed(nonce, {PRODUCT_SIZE}, {steps}))"
        ),
        lambda: _figures(f"products_s({PRODUCT_SIZE}, {steps})"),
    )
    words = f"{steps} products of whole numbers by cuBLAS"
    return Figure(GROUP, "proof of matrix products", proofs, "s", PROOF, floors, words)


def _gpu_class() -> GPUClass:
    gpu = next(one for one in read_gpus() if isinstance(one, GpuReading))
    gpu_class = classify(gpu.name, gpu.memory_total_mb)
    assert gpu_class, f"the catalogue lacks {gpu.name}"
    return gpu_class


FIGURES = """
import json, time, torch
from gpuyard.verification.solver import product, proofs
proofs.prepare()

def timed(work):
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began

def copy_gbs(times=20):
    here = torch.randint(-128, 127, (2**30,), device="cuda", dtype=torch.int8)
    there = torch.empty_like(here)
    there.copy_(here)
    return 2 * 2**30 * times / 1e9 / timed(
        lambda: [there.copy_(here) for _ in range(times)]
    )

def products_s(size, steps):
    chain = product.TorchProduct(torch, "cuda", None, "00", size)
    return timed(lambda: [chain._sums() for _ in range(steps)])
"""


def _figures(call: str) -> Any:
    """What a call gives, in a process of its own."""
    nonce = secrets.token_hex(16)
    program = f"{FIGURES}\nnonce = {nonce!r}\nprint(json.dumps({call}))"
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
