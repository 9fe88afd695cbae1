"""Verification on a real GPU: an honest executor proves its class, a liar does not."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuyard.domain.gpus import classify
from gpuyard.verification.classes import TRAITS
from gpuyard.verification.solver import memory, product
from gpuyard.verification.solver.memory_numpy import NumpyMemory
from tests.acceptance.test_verify_cheaters import lines, not_ok
from tests.gpu.conftest import gpus
from tests.support.instance import TestInstance, make_instance
from tests.support.model_server import OFFLINE
from tests.support.programs import run_program
from tests.support.quick_prompts import GENERATOR
from tests.support.verifying import (
    cheating,
    configure,
    executor,
    outcomes,
    section,
    verify,
)

ROOT = Path(__file__).parents[2]
NONCE = "00112233445566778899aabbccddeeff"
# In GiB: a few rows, since NumPy is slow, and many.
SIZES = (1 / 1024, 1.0)
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(500)]


PROOFS = f"""
import json
from gpuyard.verification.solver import proofs
NONCE = {NONCE!r}
def digests():
    memories = [proofs.vram(NONCE, size)["digest"] for size in {SIZES}]
    return [*memories, proofs.speed(NONCE, 512, 3)["digest"]]
by_kernels = digests()
found = proofs._compiled["cuda"] is not None
proofs._compiled["cuda"] = None
print(json.dumps([found, by_kernels, digests()]))
"""


def test_kernels_and_pytorch_and_numpy_prove_the_same(gpu_python: str) -> None:
    done = run_program(
        [gpu_python, "-c", PROOFS],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(_paths())},
    )
    kernels, by_kernels, by_pytorch = json.loads(done.stdout)
    assert kernels, "Triton is missing there"
    assert by_kernels == by_pytorch
    rows = memory.rows_of(SIZES[0])
    assert by_kernels[0] == memory.digest(NONCE, NumpyMemory(rows))
    chain = product.NumpyProduct(NONCE, 512)
    assert by_kernels[2] == product.digest(NONCE, 3, chain)


@pytest.fixture
def checked(gpu_python: str, model_folder: Path) -> Iterator[TestInstance]:
    """Three names for one GPU: a trusted one, an honest one, and a liar."""
    gpu = gpus()[0]
    gpu_class = classify(gpu.name, gpu.memory_total_mb)
    assert gpu_class
    place: dict[str, Any] = {
        "gpu": gpu.uuid,
        "cpus": 4,
        "engine": {"kind": "transformers", "model": str(model_folder)},
    }
    with make_instance(**OFFLINE, PYTHONPATH=os.pathsep.join(_paths())) as instance:
        liar = cheating(instance, "canned", gpu_python)
        (instance.work / "canned.memory").write_text("0")
        configure(
            instance,
            section(
                "verification",
                generator=GENERATOR,
                series_per_run=TRAITS[gpu_class].prompts,
                target=1,
            ),
            executor("trusted", gpu_class, trusted=True, python=gpu_python, **place),
            executor("honest", gpu_class, python=gpu_python, **place),
            executor("liar", gpu_class, python=liar, **place),
        )
        yield instance


def test_an_honest_gpu_proves_its_class_and_a_liar_does_not(
    checked: TestInstance, record_property: Callable[[str, object], None]
) -> None:
    gpu_class = classify(gpus()[0].name, gpus()[0].memory_total_mb)
    words = ["--class", str(gpu_class), "--trusted", "trusted", "--runs", "5"]
    said = checked.ok("verify", "calibrate", *words, "--json", timeout=300)
    record_property("calibration", json.loads(said))
    found = verify(checked, "honest", "--claim", "all", timeout=300)
    assert outcomes(found) == {"honest": "passed"}, found
    for line in lines(checked, found["honest"]["check"]):
        record_property(f"honest: {line['name']}", line)
    found = verify(checked, "liar", "--claim", "all", code=1, timeout=300)
    assert outcomes(found) == {"liar": "failed"}, found
    assert not_ok(checked, found["liar"]["check"]) >= {"vram_digest"}


def _paths() -> list[str]:
    """Where programs find gpuyard and these tests."""
    found = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return [path for path in found if path]
