"""Triton's kernels compute what PyTorch and NumPy compute, shown by Triton's
interpreter, since there is no GPU here. Triton is large, so this is not in `make test`.
"""

import os
import sys
from pathlib import Path

import pytest

from gpuyard.verification.solver import memory, proofs
from gpuyard.verification.solver.memory_numpy import NumpyMemory
from tests.support.environments import make_python
from tests.support.huggingface import make_trainer_python
from tests.support.programs import run_program

PACKAGES = ("triton==3.9.0", "numpy==2.4.6")
FOLDER = Path(proofs.__file__).parents[1]
NONCE = "00112233445566778899aabbccddeeff"
PROGRAM = f"""
import torch
from solver import memory, memory_kernels, product
from solver.memory_torch import TorchMemory
proven = TorchMemory(torch, "cpu", memory_kernels, 6)
print(memory.digest({NONCE!r}, proven))
chain = product.TorchProduct(torch, "cpu", memory_kernels, {NONCE!r}, 72)
print(product.digest({NONCE!r}, 3, chain))
"""


@pytest.mark.skipif(
    "GPUYARD_REAL_TRACKERS" not in os.environ, reason="`make soak` runs it"
)
@pytest.mark.timeout(300)
def test_tritons_kernels_prove_what_numpy_proves() -> None:
    triton = make_python("triton", PACKAGES).parents[1] / "lib"
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    done = run_program(
        [make_trainer_python(), "-c", PROGRAM],
        cwd=FOLDER,
        env={
            **os.environ,
            "TRITON_INTERPRET": "1",
            "PYTHONPATH": str(triton / version / "site-packages"),
        },
    )
    assert done.stdout.split() == [
        memory.digest(NONCE, NumpyMemory(6)),
        proofs.speed(NONCE, 72, 3)["digest"],
    ]
