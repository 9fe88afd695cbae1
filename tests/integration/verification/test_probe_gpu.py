"""The probes of a GPU, on the processor of an environment with PyTorch: the memory
proof and the speeds.
"""

import json
import os
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpuyard.verification.solver import probe_gpu
from tests.support import huggingface, memory_proof
from tests.support.programs import run_program

fast_trainer_python = huggingface.fast_trainer_python
trainer_python = huggingface.trainer_python

NONCE = "00112233445566778899aabbccddeeff"
ROW_PAIR_GB = 1 / 2048
FILE = Path(probe_gpu.__file__)
Probe = Callable[[str], Any]


@cache
def plain_digest(gigabytes: float) -> str:
    """The digest for NONCE, computed without a GPU and without PyTorch."""
    return memory_proof.digest(NONCE, gigabytes)


@pytest.fixture(scope="module")
def probe(fast_trainer_python: Path) -> Probe:
    """Evaluates an expression there, with what the module offers, in a process of its
    own.
    """

    def evaluate(expression: str) -> Any:
        program = (
            "import json, probe_gpu; from probe_gpu import"
            f" *\n{EXPERIMENTS}\nprint(json.dumps({expression}))"
        )
        done = subprocess.run(
            [fast_trainer_python, "-c", program],
            cwd=FILE.parent,
            capture_output=True,
            text=True,
            timeout=100,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            check=False,
        )
        return (
            json.loads(done.stdout)
            if done.returncode == 0
            else done.stderr.strip().splitlines()[-1]
        )

    return evaluate


def test_the_digest_is_what_numpy_computes_at_another_place(
    probe: Probe,
) -> None:
    said = probe(
        f"[vram({NONCE!r}, {ROW_PAIR_GB}), vram({NONCE!r}, {2 * ROW_PAIR_GB}),"
        f" vram('ff', {ROW_PAIR_GB})]"
    )
    assert [one["digest"] for one in said[:2]] == [
        plain_digest(ROW_PAIR_GB),
        plain_digest(2 * ROW_PAIR_GB),
    ]
    assert len({one["digest"] for one in said}) == 3
    assert [one["gigabytes"] for one in said] == [
        ROW_PAIR_GB,
        2 * ROW_PAIR_GB,
        ROW_PAIR_GB,
    ]
    assert all(
        one["fill_s"] > 0 and one["read_s"] > 0 and one["device"] == "cpu"
        for one in said
    )


def test_how_much_is_done_at_once_does_not_matter(probe: Probe) -> None:
    some = (
        f"setattr(probe_gpu, '_ROWS_AT_ONCE', {{}}) or vram({NONCE!r},"
        f" {4 * ROW_PAIR_GB})['digest']"
    )
    one, three, many = probe(
        f"[{some.format(1)}, {some.format(3)}, {some.format(256)}]"
    )
    assert one == three == many


# Appended to the module: what becomes of a word that differs before the layers begin,
# and of one that is lost after.
EXPERIMENTS = """
def same_after(flip):
    import torch
    straight = probe_gpu._mix
    def spoiling(words):
        probe_gpu._mix = straight  # the first call is that of the rows' first content
        words[0] ^= 1
        return straight(words)
    memories = []
    for first in (straight, spoiling if flip else straight):
        probe_gpu._mix = first
        memories.append(torch.empty((4, WORDS), dtype=torch.int64))
        probe_gpu._fill(torch, memories[-1], b"nonce")
    return int((memories[0] == memories[1]).sum())

def digests():
    import torch
    memory = torch.arange(4 * WORDS).view(4, WORDS)
    first = probe_gpu._read(torch, memory, b"nonce")
    memory[3, WORDS - 1] ^= 1
    return [first, probe_gpu._read(torch, memory, b"nonce")]

def on_a_gpu_whose_triton(kernels, gigabytes):
    import sys, torch, types
    sys.modules["gpu.probe_kernels"] = kernels
    probe_gpu.__package__ = "gpu"
    # The processor in place of the GPU, which no other part of it sees.
    probe_gpu._torch = lambda: (torch, "cpu:0")
    probe_gpu._wait = lambda torch, device: None
    probe_gpu._name = lambda torch, device: "a GPU"
    return vram({NONCE!r}, gigabytes)["digest"]

class WithoutCompiler:
    def fill(self, *arguments):
        raise RuntimeError("Failed to find C compiler")

class Wrong:
    def fill(self, memory, *numbers):
        memory.fill_(7)
    def pair(self, memory, *numbers):
        pass
    def sums(self, memory, weights):
        return memory.sum(1)
""".replace("{NONCE!r}", repr(NONCE))


@pytest.mark.parametrize("kernels", ["None", "WithoutCompiler()", "Wrong()"])
def test_where_triton_cannot_run_the_proof_does_without(
    probe: Probe, kernels: str
) -> None:
    """It is missing, finds no C compiler, or is a version that computes otherwise."""
    found = probe(f"on_a_gpu_whose_triton({kernels}, {ROW_PAIR_GB})")
    assert found == plain_digest(ROW_PAIR_GB)


def test_a_single_bit_that_is_lost_changes_the_digest(probe: Probe) -> None:
    whole, spoiled = probe("digests()")
    assert whole != spoiled


def test_after_the_last_layer_every_word_depends_on_every_row(probe: Probe) -> None:
    """So that no part can be computed alone: one bit at the beginning, and hardly a
    word of any row stays as it was.
    """
    assert probe("same_after(False)") == 4 * probe_gpu.WORDS
    assert probe("same_after(True)") < 4 * probe_gpu.WORDS / 100


def test_speeds_are_figures_of_this_machine(probe: Probe) -> None:
    said = probe(f"speed({NONCE!r}, 3)")
    assert (
        set(said) == {"tflops", "bandwidth_gbs", "device"} and said["device"] == "cpu"
    )
    assert 0 < said["tflops"] < 1000 and 0 < said["bandwidth_gbs"] < 10000


def test_a_nonce_that_is_none(probe: Probe) -> None:
    assert probe("vram('xyz', 0.001)").startswith("ValueError: non-hexadecimal")
    assert probe("speed('xyz')").startswith("ValueError: non-hexadecimal")


def test_it_needs_nothing_but_the_standard_library_to_be_imported(
    trainer_python: Path,
) -> None:
    program = (
        "import probe_gpu, sys; print('torch' in sys.modules, 'gpuyard' in sys.modules)"
    )
    done = run_program([trainer_python, "-c", program], cwd=FILE.parent)
    assert done.stdout.split() == ["False", "False"]
