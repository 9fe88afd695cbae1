"""The proofs as a GPU makes them, on the processor of an environment with PyTorch."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuyard.verification.solver import memory, proofs
from gpuyard.verification.solver.memory_numpy import NumpyMemory
from tests.support import huggingface
from tests.support.programs import run_program

fast_trainer_python = huggingface.fast_trainer_python
trainer_python = huggingface.trainer_python

NONCE = "00112233445566778899aabbccddeeff"
ROW_PAIR_GB = 1 / 2048
FOLDER = Path(proofs.__file__).parents[1]
Probe = Callable[[str], Any]
# The processor in place of the GPU, which no other part of it sees.
PROGRAM = f"""
import json, sys, torch
from solver import proofs, product, memory
from solver.memory_torch import TorchMemory
NONCE = {NONCE!r}
proofs._device = lambda: (torch, "cpu:0")
proofs._free = lambda torch: None
proofs._name = lambda torch, device: "a GPU"

def on_a_gpu_whose_triton(kernels):
    sys.modules["solver.memory_kernels"] = kernels
    return proofs.vram(NONCE, {ROW_PAIR_GB})["digest"]

def digest_of_product(whole):
    chain = product.TorchProduct(torch, "cpu", None, NONCE, 64)
    assert chain._whole
    chain._whole = whole
    return product.digest(NONCE, 3, chain)

def digest_in_blocks(at_once):
    import solver.memory_torch as module
    module._ROWS_AT_ONCE = at_once
    return memory.digest(NONCE, TorchMemory(torch, "cpu", None, 6))

class WithoutCompiler:
    def fill(self, *arguments):
        raise RuntimeError("Failed to find C compiler")

class Wrong:
    def fill(self, words, *numbers):
        words.fill_(7)
    def mix(self, words, order, sums, *numbers):
        sums.fill_(7)
"""


@pytest.fixture(scope="module")
def probe(fast_trainer_python: Path) -> Probe:
    """Evaluates an expression there, in a process of its own."""

    def evaluate(expression: str) -> Any:
        done = subprocess.run(
            [
                fast_trainer_python,
                "-c",
                f"{PROGRAM}\nprint(json.dumps({expression}))",
            ],
            cwd=FOLDER,
            capture_output=True,
            text=True,
            timeout=100,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return evaluate


def test_pytorch_proves_what_numpy_proves_however_much_is_done_at_once(
    probe: Probe,
) -> None:
    digests = probe("[digest_in_blocks(1), digest_in_blocks(2), digest_in_blocks(256)]")
    assert set(digests) == {memory.digest(NONCE, NumpyMemory(6))}


def test_gpus_with_and_without_whole_numbers_multiply_as_numpy_does(
    probe: Probe,
) -> None:
    digests = probe("[digest_of_product(True), digest_of_product(False)]")
    assert set(digests) == {proofs.speed(NONCE, 64, 3)["digest"]}


@pytest.mark.parametrize("kernels", ["None", "WithoutCompiler()", "Wrong()"])
def test_where_triton_cannot_run_the_proof_does_without(
    probe: Probe, kernels: str
) -> None:
    """It is missing, finds no C compiler, or is a version that computes otherwise."""
    found = probe(f"on_a_gpu_whose_triton({kernels})")
    assert found == memory.digest(NONCE, NumpyMemory(2))


def test_it_needs_nothing_but_the_standard_library_to_be_imported(
    trainer_python: Path,
) -> None:
    program = (
        "from solver import proofs; import sys;"
        " print([name in sys.modules for name in ('torch', 'numpy', 'gpuyard')])"
    )
    done = run_program([trainer_python, "-c", program], cwd=FOLDER)
    assert done.stdout.split() == ["[False,", "False,", "False]"]
