"""The catalogue of GPU classes: one row per type. Tiers, S2's `gpu_type` and discovered
GPUs all resolve to these.

VRAM, compute capability and TFLOPS are NVIDIA's published figures (product pages,
datasheets and the CUDA GPU list), last checked on 2026-11-21. A GPU without a row still
works: it is placed by VRAM and compute capability.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from functools import lru_cache

from gpuyard.domain.errors import quoted


class GPUClass(StrEnum):
    """A type of GPU."""

    P100 = "p100"
    V100_16GB = "v100-16gb"
    V100_32GB = "v100-32gb"
    T4 = "t4"
    RTX_3090 = "rtx-3090"
    RTX_4090 = "rtx-4090"
    RTX_5090 = "rtx-5090"
    A6000 = "a6000"
    RTX_6000_ADA = "rtx-6000-ada"
    A10 = "a10"
    A10G = "a10g"
    A30 = "a30"
    A40 = "a40"
    A100_40GB = "a100-40gb"
    A100_80GB = "a100-80gb"
    L4 = "l4"
    L40 = "l40"
    L40S = "l40s"
    H100_80GB = "h100-80gb"
    H100_94GB = "h100-94gb"
    H200 = "h200"
    GH200 = "gh200"
    B200 = "b200"


@dataclass(frozen=True, slots=True)
class GPUClassSpec:
    """The properties of a class: `pattern` matches the driver's product name,
    `memory_gb` is nominal VRAM.

    `tflops`: dense half precision, with tensor cores if it has them; a first estimate
    of its speed compared to others.
    """

    pattern: str
    memory_gb: int
    compute_capability: str
    tflops: float


GPU_CLASSES: Mapping[GPUClass, GPUClassSpec] = {
    GPUClass.P100: GPUClassSpec(r"\bP100\b", 16, "6.0", 18.7),
    GPUClass.V100_16GB: GPUClassSpec(r"\bV100\b", 16, "7.0", 125),
    GPUClass.V100_32GB: GPUClassSpec(r"\bV100S?\b", 32, "7.0", 125),
    GPUClass.T4: GPUClassSpec(r"\bT4\b", 16, "7.5", 65),
    GPUClass.RTX_3090: GPUClassSpec(r"\bRTX 3090\b", 24, "8.6", 71),
    GPUClass.RTX_4090: GPUClassSpec(r"\bRTX 4090\b", 24, "8.9", 165),
    GPUClass.RTX_5090: GPUClassSpec(r"\bRTX 5090\b", 32, "12.0", 209),
    GPUClass.A6000: GPUClassSpec(r"\bRTX A6000\b", 48, "8.6", 155),
    GPUClass.RTX_6000_ADA: GPUClassSpec(r"\bRTX 6000 Ada\b", 48, "8.9", 364),
    GPUClass.A10: GPUClassSpec(r"\bA10\b", 24, "8.6", 125),
    GPUClass.A10G: GPUClassSpec(r"\bA10G\b", 24, "8.6", 70),
    GPUClass.A30: GPUClassSpec(r"\bA30\b", 24, "8.0", 165),
    GPUClass.A40: GPUClassSpec(r"\bA40\b", 48, "8.6", 150),
    GPUClass.A100_40GB: GPUClassSpec(r"\bA100\b", 40, "8.0", 312),
    GPUClass.A100_80GB: GPUClassSpec(r"\bA100\b", 80, "8.0", 312),
    GPUClass.L4: GPUClassSpec(r"\bL4\b", 24, "8.9", 121),
    GPUClass.L40: GPUClassSpec(r"\bL40\b", 48, "8.9", 181),
    GPUClass.L40S: GPUClassSpec(r"\bL40S\b", 48, "8.9", 362),
    GPUClass.H100_80GB: GPUClassSpec(r"\bH100\b", 80, "9.0", 989),
    GPUClass.H100_94GB: GPUClassSpec(r"\bH100\b", 94, "9.0", 835),
    GPUClass.H200: GPUClassSpec(r"\bH200\b", 141, "9.0", 989),
    GPUClass.GH200: GPUClassSpec(r"\bGH200\b", 96, "9.0", 990),
    GPUClass.B200: GPUClassSpec(r"\bB200\b", 180, "10.0", 2250),
}
_missing = set(GPUClass) - set(GPU_CLASSES)
if _missing:
    raise RuntimeError(f"GPU_CLASSES lacks {sorted(_missing)}")

# A family names every memory size of one type; people and S2's `gpu_type` write `A100`.
FAMILIES: Mapping[str, frozenset[GPUClass]] = {
    "v100": frozenset({GPUClass.V100_16GB, GPUClass.V100_32GB}),
    "a100": frozenset({GPUClass.A100_40GB, GPUClass.A100_80GB}),
    "h100": frozenset({GPUClass.H100_80GB, GPUClass.H100_94GB}),
}


@lru_cache(maxsize=1024)
def classify(product_name: str, memory_mb: int) -> GPUClass | None:
    """The class of a discovered GPU by the driver's product name and VRAM in MB; None
    when no row matches.

    A card reports a little less than its nominal VRAM, so among rows of one name the
    nearest size wins. A size that is off by more than a fifth (a vGPU share) does not
    match. A MIG instance has its card's name but not its speed, so it never matches.
    """
    if re.search(r"\bMIG\b", product_name):
        return None
    rows = [
        (abs(spec.memory_gb - memory_mb / 1024), name)
        for name, spec in GPU_CLASSES.items()
        if re.search(spec.pattern, product_name, re.IGNORECASE)
    ]
    if not rows:
        return None
    difference, best = min(rows)
    return best if difference <= GPU_CLASSES[best].memory_gb / 5 else None


def whole_gpus(value: object) -> object:
    """The count as it was given; ValueError for a part of a GPU (`0.25`, `1/4`), which
    must become neither 0 nor 1.
    """
    is_part = False
    if isinstance(value, float):
        is_part = value % 1 != 0
    elif isinstance(value, str):
        is_part = _PART.fullmatch(value.strip()) is not None
    if is_part:
        raise ValueError(
            f"asks for a part of a GPU ({value}), and only whole ones are given out;"
            " ask for 1 with a smaller memory_gb: a MIG instance counts as one"
        )
    return value


# Each digit can match in one way only, so that a long text takes linear time.
_PART = re.compile(r"\d*\.0*[1-9]\d*|\d+\s*/\s*\d+")


# What other tools take for a number.
_NUMBERS_ELSEWHERE = frozenset({"all", "any", "auto", "every", "max"})


def resolve_gpu_class(name: str) -> frozenset[GPUClass]:
    """The classes that a name such as `A100`, `a100-80gb` or `NVIDIA RTX 4090` means;
    ValueError lists the nearest names.
    """
    word = re.sub(r"[\s_]+", "-", name.strip().lower().removeprefix("nvidia").strip())
    for candidate in (word, f"rtx-{word}", word.removeprefix("rtx-")):
        if candidate in FAMILIES:
            return FAMILIES[candidate]
        if candidate in GPU_CLASSES:
            return frozenset({GPUClass(candidate)})
    if word in _NUMBERS_ELSEWHERE:
        raise ValueError(
            f"{quoted(name)} is neither a number of GPUs nor a class; say how many,"
            " such as 2"
        )
    known = [*FAMILIES, *GPU_CLASSES]
    near = get_close_matches(word, known, n=3, cutoff=0.5)
    offered = f"nearest: {', '.join(near)}"
    if not near:
        offered = f"there are: {', '.join(sorted(known))}"
    raise ValueError(f"there is no GPU class {quoted(name)}; {offered}")


def compute_capability(text: str) -> tuple[int, int]:
    """`"8.6"` as `(8, 6)`, so that 10.0 sorts above 9.0; ValueError on anything
    else.
    """
    match = re.fullmatch(r"(\d{1,2})(?:\.(\d{1,2}))?", text.strip())
    if match is None:
        raise ValueError(f"{quoted(text)} is not a compute capability; write it as 8.6")
    return int(match[1]), int(match[2] or 0)
