"""Finds in a program's output why it died: out of memory on the GPU or on the host."""

from gpuyard.domain.reasons import Reason

GPU_OUT_OF_MEMORY = Reason.GPU_OUT_OF_MEMORY
OUT_OF_MEMORY = Reason.OUT_OF_MEMORY

# The GPU's come first, because torch's error name contains the host's.
_SIGNS = (
    ("torch.OutOfMemoryError", GPU_OUT_OF_MEMORY),
    ("torch.cuda.OutOfMemoryError", GPU_OUT_OF_MEMORY),  # before torch 2.5
    ("CUDA out of memory", GPU_OUT_OF_MEMORY),
    ("HIP out of memory", GPU_OUT_OF_MEMORY),
    ("CUDA error: out of memory", GPU_OUT_OF_MEMORY),
    ("CUDA_ERROR_OUT_OF_MEMORY", GPU_OUT_OF_MEMORY),
    ("CUBLAS_STATUS_ALLOC_FAILED", GPU_OUT_OF_MEMORY),
    ("RESOURCE_EXHAUSTED: Out of memory", GPU_OUT_OF_MEMORY),  # JAX
    ("MemoryError", OUT_OF_MEMORY),
    ("bad_alloc", OUT_OF_MEMORY),
    ("annot allocate memory", OUT_OF_MEMORY),
    ("can't allocate memory", OUT_OF_MEMORY),  # torch's CPU allocator
)


def fault_of(line: str) -> str | None:
    """`gpu_out_of_memory` or `out_of_memory` if this line shows it, else None."""
    for sign, fault in _SIGNS:
        if sign in line:
            return fault
    return None
