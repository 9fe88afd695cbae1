"""What the ledger knows of the runs of a program."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import msgspec
from pydantic import ValidationError

from gpuyard.controller.visibility import Visibility
from gpuyard.domain import wire
from gpuyard.domain.gpus import GPU_CLASSES, GPUClass
from gpuyard.domain.program_needs import MeasuredNeeds, ProgramNeeds
from gpuyard.insight.measured_runs import (
    Asked,
    PastRun,
    StartedProgram,
    measured_needs,
    started_program,
)
from gpuyard.ledger.queries import Queries

# GPUs and their memory are named in these.
_MB_PER_GB = 1024.0
_INSTANCE_OWNER = ""
# The most bytes that the name of a file has.
_MOST_NAME = 255


def needs_of_runs(
    queries: Queries,
    visibility: Visibility,
    user: str | None,
    needs: ProgramNeeds,
    program: StartedProgram | None,
    project: str | None,
) -> MeasuredNeeds:
    """What was measured of a program, and learned of programs like it; blocks on the
    ledger. `user` is who asks, None for the owner of the instance. Only what exists for
    who asks is named.
    """
    texts = [text for text in (needs.kind, needs.digest) if text]
    name = PurePosixPath(program.place).name if program else ""
    if 0 < len(name.encode()) <= _MOST_NAME:
        texts.append(_stored_text(name))
    rows = queries.runs_with(texts)
    asked = Asked(needs, program, user or _INSTANCE_OWNER, project)
    return measured_needs(_runs(rows, visibility), asked)


def _stored_text(text: str) -> str:
    """A text as it stands in JSON in the ledger."""
    return msgspec.json.encode(text).decode()[1:-1]


def _runs(
    rows: Sequence[Mapping[str, Any]], visibility: Visibility
) -> Iterable[PastRun]:
    for row in rows:
        body = msgspec.json.decode(row["body"])
        usage: dict[str, float] = msgspec.json.decode(row["usage"] or "null") or {}
        began = row["started_at"]
        ran_s = row["ended_at"] - began if row["ran_s"] is None else row["ran_s"]
        yield PastRun(
            job_id=row["job_id"],
            user=row["owner"] or _INSTANCE_OWNER,
            project=row["project"],
            program=started_program(body.get("command", ()), body.get("workdir")),
            needs=_needs(body.get("program_needs")),
            gpu_class=row["gpu"] or "",
            gpus=row["gpus"],
            gpu_memory_gb=_memory_of(row["gpu"]),
            peak_gb=_gb(usage.get(wire.GPU_MEMORY_MB)),
            ran_s=max(ran_s, 0.0),
            reason=row["reason"],
            is_whole=row["resumed_from"] is None,
            is_hidden=not visibility.sees(row["project"]),
        )


def _needs(value: Any) -> ProgramNeeds | None:
    if value is None:
        return None
    try:
        return ProgramNeeds.model_validate(value)
    except ValidationError:  # of another version
        return None


def _memory_of(gpu: str | None) -> float | None:
    """The memory of the GPUs of a class, in GB; of several classes, the least."""
    sizes = [
        GPU_CLASSES[GPUClass(name)].memory_gb
        for name in (gpu or "").split(", ")
        if name in set(GPUClass)
    ]
    return float(min(sizes)) if sizes else None


def _gb(megabytes: float | None) -> float | None:
    return None if not megabytes else megabytes / _MB_PER_GB
