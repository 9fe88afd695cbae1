"""The classes that are verified: one row for each GPU class, complete at import.

A new class needs one row and a calibration (`gpuyard verify calibrate`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum

from gpuyard.domain.errors import quoted
from gpuyard.domain.gpus import GPU_CLASSES, GPUClass, resolve_gpu_class


class PracticeClass(StrEnum):
    """A class without a GPU, for tests and for trying verification out."""

    PRACTICE_12 = "practice-12"
    PRACTICE_6 = "practice-6"


Class = GPUClass | PracticeClass


@dataclass(frozen=True, slots=True)
class VerificationTraits:
    """The numbers of a class.

    `prompts`: the prompts in a series, and in a workload too, because sampling on a GPU
    is repeatable only in batches of one size. `solve_s`: from the barrier to the
    answers' hash, until the class is calibrated. `prepare_s`: from the solver's start
    until it is ready. `spin_up_s`: from submission to the solver's start. `gpus`: how
    many a solver uses. `memory_gb`: nominal VRAM, 0 without a GPU.
    """

    prompts: int
    solve_s: float
    prepare_s: float
    spin_up_s: float
    gpus: int
    memory_gb: int


def _gpu(gpu_class: GPUClass, prompts: int) -> VerificationTraits:
    """Traits with the timeouts of S0.

    30 s and 5 s of leeway for the answers, 300 s to load a model, four minutes to spin
    up.
    """
    return VerificationTraits(
        prompts, 35.0, 300.0, 240.0, 1, GPU_CLASSES[gpu_class].memory_gb
    )


# 240 prompts are S0's figure for an A6000. The others are guesses by memory and speed:
# beside a model's weights, a 16 GB card has about a fourth of the room of a 48 GB one.
TRAITS: Mapping[Class, VerificationTraits] = {
    GPUClass.P100: _gpu(GPUClass.P100, 30),
    GPUClass.V100_16GB: _gpu(GPUClass.V100_16GB, 60),
    GPUClass.V100_32GB: _gpu(GPUClass.V100_32GB, 120),
    GPUClass.T4: _gpu(GPUClass.T4, 60),
    GPUClass.RTX_3090: _gpu(GPUClass.RTX_3090, 120),
    GPUClass.RTX_4090: _gpu(GPUClass.RTX_4090, 120),
    GPUClass.RTX_5090: _gpu(GPUClass.RTX_5090, 160),
    GPUClass.A6000: _gpu(GPUClass.A6000, 240),
    GPUClass.RTX_6000_ADA: _gpu(GPUClass.RTX_6000_ADA, 240),
    GPUClass.A10: _gpu(GPUClass.A10, 120),
    GPUClass.A10G: _gpu(GPUClass.A10G, 120),
    GPUClass.A30: _gpu(GPUClass.A30, 120),
    GPUClass.A40: _gpu(GPUClass.A40, 240),
    GPUClass.A100_40GB: _gpu(GPUClass.A100_40GB, 240),
    GPUClass.A100_80GB: _gpu(GPUClass.A100_80GB, 360),
    GPUClass.L4: _gpu(GPUClass.L4, 120),
    GPUClass.L40: _gpu(GPUClass.L40, 240),
    GPUClass.L40S: _gpu(GPUClass.L40S, 240),
    GPUClass.H100_80GB: _gpu(GPUClass.H100_80GB, 360),
    GPUClass.H100_94GB: _gpu(GPUClass.H100_94GB, 360),
    GPUClass.H200: _gpu(GPUClass.H200, 480),
    GPUClass.GH200: _gpu(GPUClass.GH200, 360),
    GPUClass.B200: _gpu(GPUClass.B200, 480),
    PracticeClass.PRACTICE_12: VerificationTraits(12, 10.0, 60.0, 60.0, 0, 0),
    PracticeClass.PRACTICE_6: VerificationTraits(6, 10.0, 60.0, 60.0, 0, 0),
}


class ExecutorClass(StrEnum):
    """A kind of executor that can be requested."""

    SPIN_UP_4MIN_GPU_24GB = "spin_up-4min.gpu-24gb"
    ALWAYS_ON_GPU_24GB = "always_on.gpu-24gb"
    ALWAYS_ON_LLM_A6000 = "always_on.llm.a6000"
    ALWAYS_ON_LLM_A100_80GB = "always_on.llm.a100-80gb"
    ALWAYS_ON_TEST = "always_on.test"


@dataclass(frozen=True, slots=True)
class ExecutorClassSpec:
    """What an executor of a class has; None means any.

    `spin_up_time`: seconds until it can start a job.
    """

    description: str
    spin_up_time: float
    has_gpu: bool = True
    cpu_cores: int | None = None
    ram_gb: int | None = None
    storage_gb: int | None = None
    gpu_vram_gb: int | None = None
    docker_cached_images: tuple[str, ...] = ()
    additional_requirements: str = ""


EXECUTOR_CLASSES: Mapping[ExecutorClass, ExecutorClassSpec] = {
    ExecutorClass.SPIN_UP_4MIN_GPU_24GB: ExecutorClassSpec(
        "a GPU of 24 GB, within four minutes", 240, gpu_vram_gb=24, storage_gb=100
    ),
    ExecutorClass.ALWAYS_ON_GPU_24GB: ExecutorClassSpec(
        "a GPU of 24 GB, always ready", 0, gpu_vram_gb=24, storage_gb=100
    ),
    ExecutorClass.ALWAYS_ON_LLM_A6000: ExecutorClassSpec(
        "an A6000 for language models, always ready", 0, gpu_vram_gb=48, storage_gb=100
    ),
    ExecutorClass.ALWAYS_ON_LLM_A100_80GB: ExecutorClassSpec(
        "an A100 of 80 GB for language models, always ready",
        0,
        gpu_vram_gb=80,
        storage_gb=100,
    ),
    ExecutorClass.ALWAYS_ON_TEST: ExecutorClassSpec(
        "nothing but a processor, for tests", 0, has_gpu=False
    ),
}

# None: such an executor does not run a language model.
GPU_CLASS_OF: Mapping[ExecutorClass, GPUClass | None] = {
    ExecutorClass.SPIN_UP_4MIN_GPU_24GB: None,
    ExecutorClass.ALWAYS_ON_GPU_24GB: None,
    ExecutorClass.ALWAYS_ON_LLM_A6000: GPUClass.A6000,
    ExecutorClass.ALWAYS_ON_LLM_A100_80GB: GPUClass.A100_80GB,
    ExecutorClass.ALWAYS_ON_TEST: None,
}


def require_complete(
    name: str, table: Iterable[StrEnum], members: Iterable[StrEnum]
) -> None:
    """Raise RuntimeError unless `table` has a row for every member."""
    if missing := sorted(set(members) - set(table)):
        raise RuntimeError(f"{name} lacks {', '.join(missing)}")


def require_llm_classes(table: Mapping[ExecutorClass, GPUClass | None]) -> None:
    """Raise RuntimeError when a class for language models has no GPU class."""
    if lost := sorted(
        name
        for name, gpu_class in table.items()
        if ".llm." in name and gpu_class is None
    ):
        raise RuntimeError(f"GPU_CLASS_OF names no GPU class for {', '.join(lost)}")


require_complete("TRAITS", TRAITS, [*GPUClass, *PracticeClass])
require_complete("EXECUTOR_CLASSES", EXECUTOR_CLASSES, ExecutorClass)
require_complete("GPU_CLASS_OF", GPU_CLASS_OF, ExecutorClass)
require_llm_classes(GPU_CLASS_OF)


def _gpu_class_of(executor_class: ExecutorClass) -> GPUClass:
    """The GPU class of a class of executors; ValueError when it runs no model."""
    gpu_class = GPU_CLASS_OF[executor_class]
    if gpu_class is None:
        able = ", ".join(name for name, known in GPU_CLASS_OF.items() if known)
        described = EXECUTOR_CLASSES[executor_class].description
        raise ValueError(
            f"{quoted(executor_class.value)} ({described})"
            f" runs no language model, so nothing can be compared; write one of {able}"
        )
    return gpu_class


def class_of(name: str) -> Class:
    """The class that a person names, such as `a6000`, `RTX 4090` or `practice-12`.

    A class of executors such as `always_on.llm.a6000` means its GPU class. Raises
    ValueError, which offers the nearest names.
    """
    word = name.strip().lower()
    if word in set(ExecutorClass):
        return _gpu_class_of(ExecutorClass(word))
    if word in set(PracticeClass):
        return PracticeClass(word)
    try:
        found = resolve_gpu_class(name)
    except ValueError as error:
        near = get_close_matches(word, list(PracticeClass), n=2, cutoff=0.6)
        raise ValueError(
            f"there is no class {quoted(name)}; nearest: {', '.join(near)}"
            if near
            else str(error)
        ) from None
    if len(found) > 1:
        raise ValueError(
            f"{quoted(name)} is more than one class; write one of"
            f" {', '.join(sorted(found))}"
        )
    return next(iter(found))
