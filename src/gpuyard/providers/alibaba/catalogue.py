"""Alibaba Cloud's GPU instance types, as dated data.

From "GPU-accelerated compute-optimized instance families" in the documentation of ECS
on `CATALOGUE_DATE`. Types with a part of a GPU (vgn6i, sgn7i) are left out. So are
prices: they differ by region and account, and Alibaba's API has them (`MarketSurvey`).
What it says of a type's size comes first.
"""

from collections.abc import Mapping

from gpuyard.domain.gpus import GPU_CLASSES, GPUClass, classify, resolve_gpu_class
from gpuyard.providers.instances.api import MachineType

CATALOGUE_DATE = "2026-11-29"
SOURCE = f"Alibaba Cloud, ECS, GPU-accelerated instance families, {CATALOGUE_DATE}"

# As people write them; the catalogue of GPUs has a row for each with its memory.
_NAMES = {
    GPUClass.P100: "P100",
    GPUClass.T4: "T4",
    GPUClass.V100_16GB: "V100",
    GPUClass.V100_32GB: "V100",
    GPUClass.A10: "A10",
    GPUClass.A100_40GB: "A100",
    GPUClass.A100_80GB: "A100",
}


def _family(
    gpu: GPUClass, family: str, *sizes: tuple[str, int, int, int]
) -> dict[str, MachineType]:
    """Each size is its name, GPUs, vCPUs and GiB."""
    spec = GPU_CLASSES[gpu]
    found: dict[str, MachineType] = {}
    for size, gpus, cpus, memory_gb in sizes:
        name = f"ecs.{family}-{size}"
        found[name] = MachineType(
            name,
            gpu=_NAMES[gpu],
            gpus=gpus,
            gpu_memory_gb=spec.memory_gb,
            capability=spec.compute_capability,
            cpus=cpus,
            memory_gb=memory_gb,
        )
    return found


INSTANCE_TYPES: Mapping[str, MachineType] = {
    **_family(
        GPUClass.P100,
        "gn5",
        ("c4g1.xlarge", 1, 4, 30),
        ("c8g1.2xlarge", 1, 8, 60),
        ("c4g1.2xlarge", 2, 8, 60),
        ("c8g1.4xlarge", 2, 16, 120),
        ("c28g1.7xlarge", 1, 28, 112),
        ("c8g1.8xlarge", 4, 32, 240),
        ("c28g1.14xlarge", 2, 56, 224),
        ("c8g1.14xlarge", 8, 54, 480),
    ),
    **_family(
        GPUClass.T4,
        "gn6i",
        ("c4g1.xlarge", 1, 4, 15),
        ("c8g1.2xlarge", 1, 8, 31),
        ("c16g1.4xlarge", 1, 16, 62),
        ("c24g1.6xlarge", 1, 24, 93),
        ("c40g1.10xlarge", 1, 40, 155),
        ("c24g1.12xlarge", 2, 48, 186),
        ("c24g1.24xlarge", 4, 96, 372),
    ),
    **_family(
        GPUClass.V100_16GB,
        "gn6v",
        ("c8g1.2xlarge", 1, 8, 32),
        ("c8g1.4xlarge", 2, 16, 64),
        ("c8g1.8xlarge", 4, 32, 128),
        ("c8g1.16xlarge", 8, 64, 256),
        ("c10g1.20xlarge", 8, 82, 336),
    ),
    **_family(
        GPUClass.V100_32GB,
        "gn6e",
        ("c12g1.3xlarge", 1, 12, 92),
        ("c12g1.6xlarge", 2, 24, 182),
        ("c12g1.12xlarge", 4, 48, 368),
        ("c12g1.24xlarge", 8, 96, 736),
    ),
    **_family(
        GPUClass.A10,
        "gn7i",
        ("c8g1.2xlarge", 1, 8, 30),
        ("c16g1.4xlarge", 1, 16, 60),
        ("c32g1.8xlarge", 1, 32, 188),
        ("c48g1.12xlarge", 1, 48, 310),
        ("c56g1.14xlarge", 1, 56, 346),
        ("c32g1.16xlarge", 2, 64, 376),
        ("c32g1.32xlarge", 4, 128, 752),
    ),
    **_family(
        GPUClass.A100_40GB,
        "gn7",
        ("c12g1.3xlarge", 1, 12, 94),
        ("c13g1.13xlarge", 4, 52, 378),
        ("c13g1.26xlarge", 8, 104, 756),
    ),
    **_family(
        GPUClass.A100_80GB,
        "gn7e",
        ("c16g1.4xlarge", 1, 16, 125),
        ("c16g1.8xlarge", 2, 32, 250),
        ("c16g1.16xlarge", 4, 64, 500),
        ("c16g1.32xlarge", 8, 128, 1000),
    ),
}


def types_of(words: tuple[str, ...]) -> tuple[str, ...]:
    """The instance types that these names of types and of GPU classes mean, each once;
    all of the catalogue without a name.

    A class means its types of the catalogue. ValueError names a word that is neither.
    """
    found: dict[str, None] = {}
    for word in words or tuple(INSTANCE_TYPES):
        for name in _types_of(word):
            found[name] = None
    return tuple(found)


def _types_of(word: str) -> list[str]:
    if word.startswith("ecs."):
        return [word]
    classes = resolve_gpu_class(word)
    found = [name for name, kind in INSTANCE_TYPES.items() if class_of(kind) in classes]
    if not found:
        raise ValueError(
            f"the catalogue has no instance type with {word}; name the type itself, as"
            " ecs.gn6i-c4g1.xlarge"
        )
    return found


def class_of(kind: MachineType) -> GPUClass | None:
    """The class of its GPUs; None when it has none or an unknown one."""
    return classify(kind.gpu, int(kind.gpu_memory_gb * 1024)) if kind.gpus else None
