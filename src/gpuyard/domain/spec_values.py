"""The values in a job's spec: what each may be, and the words that refuse another."""

import re
import signal
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Annotated, Any, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationInfo,
)

from gpuyard.domain import units
from gpuyard.domain.deadlines import LATEST, as_moment
from gpuyard.domain.errors import quoted
from gpuyard.domain.gpus import compute_capability, resolve_gpu_class, whole_gpus
from gpuyard.domain.packages_field import packages_digest
from gpuyard.domain.secret_names import secret_name

MAX_SPEC_BYTES = 1_000_000
# More than anyone writes, and less than every JSON reader and writer involved can
# process.
MAX_DEPTH = 64
STORED = {"stored": True}
"""The validation context of a spec from the ledger, where it was validated before."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


def _clean_text(value: str) -> str:
    bad = sorted({repr(c) for c in value if not c.isprintable()})
    if bad:
        raise ValueError(
            f"holds control characters ({', '.join(bad[:3])}); use printable characters"
            " only"
        )
    return value


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("holds a NUL byte, which no program can be given; remove it")
    return value


def _input(value: str) -> str:
    size = len(value.encode())
    if size > MAX_SPEC_BYTES:
        fault = f"is {size / 1e6:.1f} MB; a spec may have {MAX_SPEC_BYTES / 1e6:.0f} MB"
        raise ValueError(f"{fault}; let the program read a large input from a file")
    return value


def _signal_name(value: str) -> str:
    name = value.upper().removeprefix("SIG")
    known = {s.name.removeprefix("SIG") for s in signal.Signals}
    if name not in known or name in ("KILL", "STOP"):
        raise ValueError(
            f"{quoted(value)} is not a signal a program can catch; use USR1, USR2,"
            " TERM, INT or HUP"
        )
    return name


def _pattern(value: str, info: ValidationInfo) -> str:
    path = PurePosixPath(value)
    leads_out = path.is_absolute() or ".." in path.parts
    # Older versions took any pattern, and their jobs must be readable.
    if leads_out and info.context != STORED:
        raise ValueError(
            f"{quoted(value)} may lead out of the job's folder; write it relative to"
            " that folder, without '..'"
        )
    return value


def _filled_in(value: str, info: ValidationInfo) -> str:
    if info.context != STORED:
        raise ValueError("is filled in by the server, which asks the kernel; remove it")
    return value


def _digest(value: str) -> str:
    if not _SHA256.fullmatch(value):
        raise ValueError(
            f"{quoted(value)} is not a SHA-256 in hex; leave it out, clients fill it in"
        )
    return value


def _no_words(value: Any) -> Any:
    if isinstance(value, list | tuple | str):
        raise ValueError(
            "holds words, and is a table for scripts; the words of a program go behind"
            ' it: command = ["python", "train.py", "--epochs", "3"]'
        )
    return value


def _gpu_class(value: str) -> str:
    resolve_gpu_class(value)
    return value.strip().lower()


def _capability(value: str) -> str:
    compute_capability(value)
    return value.strip()


def _not_too_deep(value: dict[str, Any]) -> dict[str, Any]:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
    if level:
        raise ValueError(
            f"is nested more than {MAX_DEPTH} deep; put large data into a file and name"
            " it here"
        )
    return value


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).values()
    return cast("list[Any]", value) if isinstance(value, list) else ()


def _number_text(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else value


Gigabytes = Annotated[
    float, BeforeValidator(units.memory_gb), Field(gt=0, le=1_000_000)
]
Seconds = Annotated[float, BeforeValidator(units.seconds), Field(gt=0, le=366 * 86400)]
Moment = Annotated[float, BeforeValidator(as_moment), Field(gt=0, le=LATEST)]
"""UTC seconds."""
Name = Annotated[
    str, StringConstraints(min_length=1, max_length=200), AfterValidator(_clean_text)
]
Line = Annotated[str, StringConstraints(max_length=500), AfterValidator(_clean_text)]
Text = Annotated[str, AfterValidator(_no_nul)]
Input = Annotated[str, AfterValidator(_input)]
Pattern = Annotated[
    str,
    StringConstraints(min_length=1),
    AfterValidator(_no_nul),
    AfterValidator(_pattern),
]
SignalName = Annotated[str, AfterValidator(_signal_name)]
SecretName = Annotated[str, AfterValidator(secret_name)]
"""The name of a secret, never its value."""
Digest = Annotated[str, AfterValidator(_digest)]
PackagesDigest = Annotated[str, AfterValidator(packages_digest)]
UserName = Annotated[str, StringConstraints(max_length=200), AfterValidator(_filled_in)]
Data = Annotated[dict[str, Any], AfterValidator(_not_too_deep)]
Arguments = Annotated[Data, BeforeValidator(_no_words)]


Priority = Annotated[int, Field(ge=1, le=5)]
GpuCount = Annotated[int, BeforeValidator(whole_gpus), Field(ge=0, le=1024)]
GpuClassName = Annotated[Name, AfterValidator(_gpu_class)]
ComputeCapability = Annotated[
    str, BeforeValidator(_number_text), AfterValidator(_capability)
]
