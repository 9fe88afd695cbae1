"""The memory proof without a GPU; that both programs say the same is shown where
PyTorch is.
"""

import pytest

from gpuyard.verification.solver import probe_gpu
from tests.support import memory_proof

NONCE = "00112233445566778899aabbccddeeff"


def test_a_nonce_that_is_none() -> None:
    with pytest.raises(ValueError, match="non-hexadecimal"):
        memory_proof.digest("xyz", 0.001)


@pytest.mark.parametrize("gigabytes", [1.0, float("nan"), float("inf")])
def test_what_is_too_much_without_a_gpu_is_refused(gigabytes: float) -> None:
    with pytest.raises(ValueError, match="too much without a GPU; ask for at most"):
        memory_proof.digest(NONCE, gigabytes)


def test_both_programs_have_the_same_shape() -> None:
    assert (memory_proof.WORDS, memory_proof.LAYERS, memory_proof.SWEEPS) == (
        probe_gpu.WORDS,
        probe_gpu.LAYERS,
        probe_gpu.SWEEPS,
    )
