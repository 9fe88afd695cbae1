"""The memory proof without a GPU; that both programs say the same is shown where PyTorch is."""

import pytest

from gpuyard.domain.gpus import GPU_CLASSES, GPUClass
from gpuyard.verification import vram
from gpuyard.verification.solver import probe_gpu

NONCE = "00112233445566778899aabbccddeeff"


def test_a_nonce_that_is_none() -> None:
    with pytest.raises(ValueError, match="non-hexadecimal"):
        vram.digest("xyz", 0.001)


@pytest.mark.parametrize("gigabytes", [1.0, float("nan"), float("inf")])
def test_what_is_too_much_without_a_gpu_is_refused(gigabytes: float) -> None:
    with pytest.raises(ValueError, match="too much without a GPU; ask for at most"):
        vram.digest(NONCE, gigabytes)


def test_both_programs_have_the_same_shape() -> None:
    assert (vram.WORDS, vram.LAYERS, vram.SWEEPS) == (probe_gpu.WORDS, probe_gpu.LAYERS, probe_gpu.SWEEPS)


def test_what_is_asked_for_fits_the_class_and_not_the_next_smaller_one_of_its_kind() -> None:
    asked = {gpu_class: vram.gigabytes_to_ask(gpu_class) for gpu_class in GPUClass}
    assert all(0.8 * GPU_CLASSES[name].memory_gb < gigabytes < 0.9 * GPU_CLASSES[name].memory_gb
               for name, gigabytes in asked.items())  # fmt: skip
    for small, large in ((GPUClass.A100_40GB, GPUClass.A100_80GB), (GPUClass.V100_16GB, GPUClass.V100_32GB)):
        assert asked[large] > GPU_CLASSES[small].memory_gb
    # By what the driver tells of them, in GiB: these fit into what their cards really have.
    assert asked[GPUClass.T4] < 14.5 and asked[GPUClass.A10G] < 22 and asked[GPUClass.H200] < 139
    assert asked[GPUClass.H100_94GB] > 79.6  # what one of 80 GB has
