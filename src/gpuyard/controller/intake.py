"""Intake: from what a client sent to jobs that can be queued, or to one error that names what is wrong.

Jobs come by the thousand and are mostly alike. Those that differ in nothing but VARYING share a `Template`, which is
validated once and remembered; msgspec reads the rest. What it does not take goes to the JobSpec model, and so does
every first of its kind, so that there is one validation and one wording of errors.
"""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, cast

import msgspec

from gpuyard.controller.images import AUTO, image_for
from gpuyard.domain.errors import Fault, InvalidInputError
from gpuyard.domain.ids import new_id
from gpuyard.domain.images import IMAGES, Image
from gpuyard.domain.jobconfig import is_job_config, spec_from_config
from gpuyard.domain.jobspec import MAX_DEPTH, GpuRequest, JobKind, JobSpec
from gpuyard.domain.scripts import WORKER_FIELDS, Scripts
from gpuyard.domain.shape import Shape
from gpuyard.domain.tasks import FindGpu, is_task, spec_from_task
from gpuyard.domain.tiers import Tier, Tiers
from gpuyard.domain.validation import parse_spec

MAX_JOBS = 100_000
VARYING = frozenset({"name", "command", "stdin", "labels", "depends_on", "idempotency_key"})
# Enough for whatever clients send just now; a list of jobs that are all different must not fill the memory.
_MAX_TEMPLATES = 256
_NO_LABELS = msgspec.Raw(b"{}")
FindJob = Callable[[str], str | None]


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """What jobs of one template have in common. `rest` is their spec without VARYING, as JSON."""

    kind: str
    priority: int
    project: str | None
    tier: str | None
    timeout_s: float | None
    estimated_duration_s: float | None
    preemptible: bool
    retry_count: int
    shape: Shape
    shape_row: Mapping[str, Any]
    provider: str | None
    workdir: str | None
    path: str | None
    warnings: tuple[str, ...]
    rest: bytes

    @classmethod
    def of(cls, spec: JobSpec, warnings: Sequence[str]) -> "Template":
        """The template of `spec`, whose tier is filled in."""
        rest = spec.model_dump(mode="json", exclude_defaults=True, exclude=set(VARYING))
        shape = Shape.of(spec)
        return cls(
            kind=spec.kind.value, priority=spec.priority, project=spec.project, tier=spec.tier,
            timeout_s=spec.timeout_s, estimated_duration_s=spec.estimated_duration_s, preemptible=spec.preemptible,
            retry_count=spec.retry_count, shape=shape, shape_row=shape.to_row(), provider=spec.provider,
            workdir=spec.workdir, path=spec.environment.get("PATH"), warnings=tuple(warnings),
            rest=msgspec.json.encode(rest),
        )  # fmt: skip


@dataclass(slots=True, eq=False)
class Prepared:
    """A job ready for the queue. `body` is its whole spec and `labels` its labels, as JSON.

    `parents` are ids; `queued_at` (UTC seconds) is None until it is queued, and when an earlier request made the job.
    """

    id: str
    template: Template
    name: str
    labels: msgspec.Raw
    key: str | None
    depends_on: tuple[str, ...]
    body: bytes
    parents: tuple[str, ...] = ()
    queued_at: float | None = None

    @classmethod
    def of(cls, template: Template, given: "_Varying | JobSpec") -> "Prepared":
        """The job of `template` that differs from others of it by what is `given`."""
        own: dict[str, Any] = {name: value for name in _OWN if (value := getattr(given, name)) or value == ""}
        if given.name == "job":
            del own["name"]  # a spec leaves out what is the default anyway
        head, rest = msgspec.json.encode(own), template.rest
        body = head if len(rest) == 2 else rest if len(head) == 2 else head[:-1] + b"," + rest[1:]
        labels = msgspec.Raw(msgspec.json.encode(given.labels)) if given.labels else _NO_LABELS
        return cls(new_id("job"), template, given.name, labels, given.idempotency_key, tuple(given.depends_on), body)

    def spec(self) -> dict[str, Any]:
        """The spec as plain data."""
        return msgspec.json.decode(self.body)


_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class _Varying(msgspec.Struct):
    """The part of a JobSpec that may differ within a template."""

    command: list[str]
    stdin: str | None = None
    name: _Name = "job"
    labels: dict[_Name, _Name] = {}
    depends_on: list[_Name] = []
    idempotency_key: _Name | None = None

    def plain(self) -> bool:
        """Does it hold nothing that the JobSpec model would refuse?"""
        words = (self.name, self.idempotency_key or "", *self.depends_on, *self.labels, *self.labels.values())
        return bool(self.command and self.command[0] and "\0" not in "".join(self.command)) and all(
            word.isprintable() for word in words
        )


_OWN = ("name", "command", "stdin", "labels", "depends_on", "idempotency_key")
_varying = msgspec.json.Decoder(_Varying)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Intake:
    """Reads jobs, one by one; remembers the templates it met of late."""

    def __init__(
        self, tiers: Tiers, models: Collection[str] = (), find_gpu: FindGpu = str, scripts: Scripts | None = None,
        container_providers: Callable[[], Collection[str]] = tuple, images: Sequence[Image] = IMAGES,
    ) -> None:  # fmt: skip
        """`container_providers`: the names of those that run containers, and nothing else."""
        self._images = images
        self._container_providers = container_providers
        self._scripts = scripts or Scripts({})
        self._tiers = tiers
        self._models = models
        self._find_gpu = find_gpu
        self._templates: dict[bytes, Template] = {}

    def read(self, body: msgspec.Raw) -> tuple[Prepared, Sequence[str]]:
        """The job that `body` (a JobSpec or an S2 JobConfig, as JSON) asks for, and its command; InvalidInputError."""
        try:
            given, key = _varying.decode(body), _key(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            given, key = None, None
        if given is not None and key in self._templates and given.plain():
            return Prepared.of(self._templates[key], given), given.command
        spec, warnings = self._validate(body)
        wanted = spec.image
        spec = self._with_image(spec, warnings)
        template = Template.of(spec, warnings)
        if key is not None and spec.image == wanted:  # else its command has decided on more than itself
            if len(self._templates) >= _MAX_TEMPLATES:
                self._templates.clear()
            self._templates[key] = template
        return Prepared.of(template, spec), spec.command

    def _validate(self, raw: msgspec.Raw) -> tuple[JobSpec, list[str]]:
        with reading_json():
            body = msgspec.json.decode(raw)
        spec, warnings = self._read_form(body)
        if spec.image and not self._container_providers():
            if not is_job_config(body):
                remedy = "add [providers.docker] to gpuyard.toml, or leave the image out"
                raise InvalidInputError.of("image", f"is {spec.image}, and nothing here runs containers", remedy)
            warnings.append(f"image {spec.image} was ignored: the job runs as a process on this machine")
            spec = spec.model_copy(update={"image": None})
        if spec.kind is JobKind.LLM:
            spec = self._with_model(spec)
        if spec.kind is JobKind.SCRIPT:
            spec = self._with_script(spec)
        if spec.kind in (JobKind.MODEL, JobKind.WORKER):
            remedy = "give command, script or prompt; see `gpuyard models` and `gpuyard batch`"
            raise InvalidInputError.of("kind", f"{spec.kind} is for gpuyard's own jobs", remedy)
        if spec.resources.gpus.uuid:
            warnings.append("resources.gpus.uuid pins devices: the job waits for these even when others are free")
        return (with_tier(spec, self._tiers.get(spec.tier)) if spec.tier else spec), warnings

    def _with_image(self, spec: JobSpec, warnings: list[str]) -> JobSpec:
        """With the image its program needs, where it says `auto`, or names a provider that only runs containers."""
        bare = spec.image is None and spec.kind is JobKind.COMMAND
        needs_one = bare and spec.provider in self._container_providers()
        if spec.image != AUTO and not needs_one:
            return spec
        choice = image_for(spec, self._images)
        warnings.append(f"image {choice.image.reference} was chosen: {choice.why}")
        return spec.model_copy(update={"image": choice.image.reference})

    def _read_form(self, body: Any) -> tuple[JobSpec, list[str]]:
        """A JobSpec, S2's JobConfig or S1's task."""
        if is_task(body):
            return spec_from_task(body, self._find_gpu, self._scripts)
        return spec_from_config(body) if is_job_config(body) else (parse_spec(body), [])

    def _with_model(self, spec: JobSpec) -> JobSpec:
        """A prompt is for a model that is configured; where there is one only, it need not be named."""
        known = ", ".join(self._models) or "none; add [models.NAME] to gpuyard.toml"
        if spec.model is None and len(self._models) != 1:
            raise InvalidInputError.of("model", "is missing", f"name one of those configured: {known}")
        if spec.model is not None and spec.model not in self._models:
            raise InvalidInputError.of("model", f"there is no model {spec.model!r}", f"configured are: {known}")
        if spec.resources.gpus.count:
            raise InvalidInputError.of(
                "resources.gpus", "does not belong to a prompt: its model has the GPUs", "remove it"
            )
        return spec.model_copy(update={"model": spec.model or next(iter(self._models))})

    def _with_script(self, spec: JobSpec) -> JobSpec:
        """A script is registered; it gets what it needs, unless the spec says what it gets."""
        name = self._scripts.named(spec.script or "")
        script = self._scripts[name]
        options = {**spec.provider_options, "script": script.model_dump(mode="json", include=WORKER_FIELDS)}
        update: dict[str, Any] = {"script": name, "args": {**script.args, **spec.args}, "provider_options": options}
        if "gpus" not in spec.resources.model_fields_set:
            gpus = GpuRequest(count=script.gpus, memory_gb=script.memory_gb if script.gpus else None)
            update["resources"] = spec.resources.model_copy(update={"gpus": gpus})
        return spec.model_copy(update=update)


@contextmanager
def reading_json() -> Generator[None]:
    """InvalidInputError for what msgspec cannot read."""
    try:
        yield
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidInputError.of("(body)", f"is not JSON: {error}", "send a JobSpec as a JSON object") from None
    except RecursionError:
        raise InvalidInputError.of("(body)", "is nested too deeply", f"nest at most {MAX_DEPTH} levels") from None


def _key(body: msgspec.Raw) -> bytes | None:
    """What jobs of one template share, byte for byte; None for other forms, whose fields mean other things."""
    fields = _fields.decode(body)
    if is_job_config(fields) or is_task(fields):
        return None
    return msgspec.json.encode({name: value for name, value in fields.items() if name not in VARYING})


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


# --- jobs that were submitted together ---


def refuse_shared_keys(jobs: Sequence[Prepared]) -> None:
    """InvalidInputError when two of `jobs` have one idempotency key."""
    first: dict[str, int] = {}
    for position, job in enumerate(jobs):
        if job.key is not None and first.setdefault(job.key, position) != position:
            raise InvalidInputError.of(f"{position}.idempotency_key", f"{job.key!r} is also that of job "
                                       f"{first[job.key]}", "give each job a key of its own")  # fmt: skip


def find_parents(jobs: Sequence[Prepared], find_job: FindJob) -> None:
    """Fill in `parents`: `depends_on` names a job of the same submission, or one that `find_job(reference)` knows."""
    if not any(job.depends_on for job in jobs):
        return
    siblings: dict[str, list[str]] = {}
    for job in jobs:
        siblings.setdefault(job.name, []).append(job.id)
    known: dict[str, str] = {}
    for job in jobs:
        for name in job.depends_on:
            if name not in known:
                known[name] = _resolve(name, siblings, find_job)
        job.parents = tuple(known[name] for name in job.depends_on)
    try:
        TopologicalSorter({job.id: job.parents for job in jobs}).prepare()
    except CycleError as error:
        names = {job.id: job.name for job in jobs}
        around = cast("list[str]", error.args[1])
        circle = " → ".join(names.get(job_id, job_id) for job_id in around)
        raise InvalidInputError.of("depends_on", f"goes in a circle: {circle}", "remove one of these") from None


def _resolve(name: str, siblings: Mapping[str, Sequence[str]], find_job: FindJob) -> str:
    named = siblings.get(name, ())
    if len(named) > 1:
        fault = f"{name!r} is the name of {len(named)} jobs of this submission"
        raise InvalidInputError.of("depends_on", fault, "give each a name of its own")
    job_id = named[0] if named else find_job(name)
    if job_id is None:
        raise InvalidInputError.of("depends_on", f"there is no job {name!r}", "give a job's id, or its name")
    return job_id


def numbered(error: InvalidInputError, position: int) -> list[Fault]:
    """The faults of one job of several, each behind the job's position."""
    return [Fault(f"{position}.{fault.field}", fault.fault, fault.remedy) for fault in error.faults]
