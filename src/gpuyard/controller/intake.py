"""Intake: from what a client sent to jobs that can be queued, or to one error that names what is wrong."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, cast

from gpuyard.domain.errors import Fault, InvalidInputError
from gpuyard.domain.ids import new_id
from gpuyard.domain.jobconfig import is_job_config, spec_from_config
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.tiers import Tier, Tiers
from gpuyard.domain.validation import parse_spec

MAX_JOBS = 10_000
# These are part of the plan and arrive with their issues; until then a job that needs them is refused, not misread.
_NOT_YET = {"script": "script workers", "prompt": "resident models", "image": "container providers"}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job ready for the queue: its new id, its spec with the tier filled in, its parents' ids, warnings."""

    id: str
    spec: JobSpec
    parents: tuple[str, ...]
    warnings: tuple[str, ...]


def prepare(bodies: Sequence[Any], tiers: Tiers, find_job: Callable[[str], str | None]) -> list[Prepared]:
    """Read `bodies` (JobSpecs or S2 JobConfigs) submitted together.

    `depends_on` names a job of the same submission, or an existing one through `find_job(reference) -> id`.
    Faults of all bodies come in one InvalidInputError, each field behind its position when there are several.
    """
    if not 1 <= len(bodies) <= MAX_JOBS:
        raise InvalidInputError.of("(body)", f"holds {len(bodies)} jobs", f"send 1 to {MAX_JOBS} at once")
    read: list[tuple[JobSpec, list[str]]] = []
    faults: list[Fault] = []
    for position, body in enumerate(bodies):
        try:
            read.append(_read(body, tiers))
        except InvalidInputError as error:
            prefix = f"{position}." if len(bodies) > 1 else ""
            faults += [Fault(prefix + fault.field, fault.fault, fault.remedy) for fault in error.faults]
    if faults:
        raise InvalidInputError(faults)
    specs = [spec for spec, _ in read]
    _refuse_shared_keys(specs)
    ids = [new_id("job") for _ in read]
    parents = _parents(specs, ids, find_job)
    rows = zip(ids, read, parents, strict=True)
    return [Prepared(job_id, spec, above, tuple(warnings)) for job_id, (spec, warnings), above in rows]


def _read(body: Any, tiers: Tiers) -> tuple[JobSpec, list[str]]:
    spec, warnings = spec_from_config(body) if is_job_config(body) else (parse_spec(body), [])
    for field, what in _NOT_YET.items():
        if getattr(spec, field) and not is_job_config(body):
            raise InvalidInputError.of(field, f"needs {what}, which this version does not have yet", "give command")
    if spec.image:
        warnings.append(f"image {spec.image} was ignored: the job runs as a process on this machine")
    if spec.resources.gpus.uuid:
        warnings.append("resources.gpus.uuid pins devices: the job waits for these even when others are free")
    return (with_tier(spec, tiers.get(spec.tier)) if spec.tier else spec), warnings


def with_tier(spec: JobSpec, tier: Tier) -> JobSpec:
    """`spec` with what it leaves open taken from its tier: cores, memory, GPUs, the longest runtime."""
    need = spec.resources
    gpus = need.gpus
    if tier.gpu_count:
        gpus = gpus.model_copy(update={"count": gpus.count or tier.gpu_count})
        # Who names a class or devices has said which GPUs, and they have what they have.
        if tier.gpu_memory_gb and not (gpus.memory_gb or gpus.gpu_class or gpus.uuid):
            gpus = gpus.model_copy(update={"memory_gb": tier.gpu_memory_gb})
    update = {"cpus": need.cpus or tier.cpu, "memory_gb": need.memory_gb or tier.memory_gb, "gpus": gpus}
    resources = need.model_copy(update=update)
    timeout_s = spec.timeout_s or tier.max_runtime_s
    return spec.model_copy(update={"tier": tier.id, "resources": resources, "timeout_s": timeout_s})


def _refuse_shared_keys(specs: Sequence[JobSpec]) -> None:
    first: dict[str, int] = {}
    for position, spec in enumerate(specs):
        key = spec.idempotency_key
        if key is not None and first.setdefault(key, position) != position:
            raise InvalidInputError.of(f"{position}.idempotency_key", f"{key!r} is also that of job {first[key]}",
                                       "give each job a key of its own")  # fmt: skip


def _parents(
    specs: Sequence[JobSpec], ids: Sequence[str], find_job: Callable[[str], str | None]
) -> list[tuple[str, ...]]:
    if not any(spec.depends_on for spec in specs):
        return [()] * len(specs)
    siblings: dict[str, list[str]] = {}
    for spec, job_id in zip(specs, ids, strict=True):
        siblings.setdefault(spec.name, []).append(job_id)
    resolved = [tuple(_resolve(name, siblings, find_job) for name in spec.depends_on) for spec in specs]
    names: Mapping[str, str] = dict(zip(ids, (spec.name for spec in specs), strict=True))
    try:
        TopologicalSorter(dict(zip(ids, resolved, strict=True))).prepare()
    except CycleError as error:
        around = cast("list[str]", error.args[1])
        circle = " → ".join(names.get(job_id, job_id) for job_id in around)
        raise InvalidInputError.of("depends_on", f"goes in a circle: {circle}", "remove one of these") from None
    return resolved


def _resolve(name: str, siblings: Mapping[str, Sequence[str]], find_job: Callable[[str], str | None]) -> str:
    named = siblings.get(name, ())
    if len(named) > 1:
        fault = f"{name!r} is the name of {len(named)} jobs of this submission"
        raise InvalidInputError.of("depends_on", fault, "give each a name of its own")
    job_id = named[0] if named else find_job(name)
    if job_id is None:
        raise InvalidInputError.of("depends_on", f"there is no job {name!r}", "give a job's id, or its name")
    return job_id
