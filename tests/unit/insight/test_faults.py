"""Naming why a program died."""

import pytest

from gpuyard.insight.faults import fault_of


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "torch.cuda.OutOfMemoryError: CUDA out of memory.",
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"
            " `cublasCreate(handle)`"
        ),
        "RuntimeError: CUDA error: out of memory",
        (
            "terminate called after throwing an instance of 'c10::Error' what(): CUDA"
            " out of memory"
        ),
        (
            "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory"
            " while trying to allocate 8 bytes."
        ),
    ],
)
def test_out_of_memory_on_the_gpu(line: str) -> None:
    assert fault_of(line) == "gpu_out_of_memory"


@pytest.mark.parametrize(
    "line",
    [
        "MemoryError",
        (
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB for"
            " an array"
        ),
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "OSError: [Errno 12] Cannot allocate memory",
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't"
            " allocate memory"
        ),
    ],
)
def test_out_of_memory_on_the_host(line: str) -> None:
    assert fault_of(line) == "out_of_memory"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "loss 0.5",
        "memory: 12 GB of 40 GB",
        "allocating workers",
        "KeyError: 'memory'",
    ],
)
def test_other_lines(line: str) -> None:
    assert fault_of(line) is None
