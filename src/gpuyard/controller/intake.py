"""Intake: turns what a client sent into jobs that can be queued, or into one error that
names the faults.

Jobs come by the thousand and are mostly alike. Jobs that differ only in VARYING fields
share a `Template`, which is validated once and cached; msgspec reads the VARYING
fields. The first job of each template, and every job that msgspec refuses, goes through
the JobSpec model. So there is one validation and one wording of errors.
"""

import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from gpuyard.controller.images import (
    AUTO,
    image_for,
    refuse_volumes_without_container,
    without_image,
)
from gpuyard.controller.model_choice import ModelChoice
from gpuyard.controller.program_advice import (
    GpuAdvice,
    gpu_sign,
    may_need_gpu,
    needs_resume_advice,
    resume_advice,
)
from gpuyard.controller.submissions import Submissions
from gpuyard.controller.visibility import EVERYTHING, Visibility
from gpuyard.domain.deadlines import counted_from_now
from gpuyard.domain.errors import Fault, InvalidInputError
from gpuyard.domain.idempotency_keys import given_key, owned_key
from gpuyard.domain.ids import new_id
from gpuyard.domain.images import IMAGES, Image
from gpuyard.domain.jobconfig import is_job_config, spec_from_config
from gpuyard.domain.jobspec import GpuRequest, JobKind, JobSpec
from gpuyard.domain.own_options import WorkerOrder
from gpuyard.domain.reasons import RetryCause
from gpuyard.domain.scripts import WORKER_FIELDS, Scripts
from gpuyard.domain.secret_names import looks_like_key
from gpuyard.domain.shape import Shape
from gpuyard.domain.spec_values import MAX_DEPTH
from gpuyard.domain.states import ParentEnd
from gpuyard.domain.tasks import FindGpu, is_task, spec_from_task
from gpuyard.domain.tiers import Tier, Tiers
from gpuyard.domain.validation import parse_spec

MAX_JOBS = 100_000
PARENT_FIELDS: Mapping[str, ParentEnd] = {
    "depends_on": ParentEnd.COMPLETED,
    "depends_on_failed": ParentEnd.FAILED,
    "depends_on_any": ParentEnd.ANY,
}
"""The fields that name parents, and how these must end."""
VARYING = frozenset(
    {"name", "command", "stdin", "labels", "idempotency_key", *PARENT_FIELDS}
)
# A limit, so that a list of jobs that are all different does not fill the memory.
_MAX_TEMPLATES = 256
_NO_LABELS = msgspec.Raw(b"{}")
_NO_REFERENCES: Mapping[str, Sequence[str]] = MappingProxyType({})
_PINS = (
    "resources.gpus.uuid pins devices: the job waits for these even when others are"
    " free"
)
_PREFERS = (
    "resources.gpus.uuid is a preference of a prompt: while its model is not loaded"
    " there, any other server of the model answers it"
)


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """What the jobs of one template have in common.

    `rest` is their spec without the VARYING fields, as JSON.
    """

    kind: str
    priority: int
    project: str | None
    user: str | None
    tier: str | None
    timeout_s: float | None
    deadline: float | None
    estimated_duration_s: float | None
    preemptible: bool
    retry_count: int
    retry_on: tuple[str, ...] | None
    held: bool
    shape: Shape
    shape_row: Mapping[str, Any]
    provider: str | None
    workdir: str | None
    path: str | None
    secrets: Mapping[str, str]
    may_need_gpu: bool
    warnings: tuple[str, ...]
    rest: bytes

    @classmethod
    def of(cls, spec: JobSpec, warnings: Sequence[str]) -> "Template":
        """The template of `spec`, in which the tier is already filled in."""
        rest = spec.given_json(exclude=VARYING)
        shape = Shape.of(spec)
        return cls(
            kind=spec.kind.value,
            priority=spec.priority,
            project=spec.project,
            user=spec.user,
            tier=spec.tier,
            timeout_s=spec.timeout_s,
            deadline=spec.deadline,
            estimated_duration_s=spec.estimated_duration_s,
            preemptible=spec.preemptible,
            retry_count=spec.retry_count,
            retry_on=_retry_on(spec),
            held=spec.held,
            shape=shape,
            shape_row=shape.to_row(),
            provider=spec.provider,
            workdir=spec.workdir,
            path=spec.environment.get("PATH"),
            secrets=spec.secrets,
            may_need_gpu=may_need_gpu(spec),
            warnings=tuple(warnings),
            rest=msgspec.json.encode(rest),
        )


def _retry_on(spec: JobSpec) -> tuple[str, ...] | None:
    """After which ends it is tried again; None for all."""
    if set(spec.retry_on) == set(RetryCause):
        return None
    return tuple(cause.value for cause in spec.retry_on)


@dataclass(slots=True, eq=False)
class PreparedJob:
    """A job ready for the queue. `own` are the fields of its spec that its template
    lacks, and `labels` its labels, as JSON.

    `key` is its idempotency key as the ledger holds it. `references` are the parents as
    given, by field. `parents` are their ids, and `parent_ends` says how they must end,
    where not `completed`. `queued_at` (UTC seconds) is None until the job is queued,
    and stays None if an earlier request made the job.
    """

    id: str
    template: Template
    name: str
    labels: msgspec.Raw
    key: str | None
    references: Mapping[str, Sequence[str]]
    own: bytes
    parents: tuple[str, ...] = ()
    parent_ends: Mapping[str, str] | None = None
    queued_at: float | None = None

    @classmethod
    def of(cls, template: Template, given: "_Varying | JobSpec") -> "PreparedJob":
        """The job of `template` with the VARYING fields of `given`."""
        varying: dict[str, Any] = {}
        for name in _VARYING_IN_ORDER:
            value = getattr(given, name)
            if value or value == "":
                varying[name] = value
        if given.name == "job":
            del varying["name"]  # the default, which a spec leaves out
        key = given.idempotency_key
        labels = _NO_LABELS
        if given.labels:
            labels = msgspec.Raw(msgspec.json.encode(given.labels))
        return cls(
            new_id("job"),
            template,
            given.name,
            labels,
            None if key is None else owned_key(key, template.user),
            _references(given),
            msgspec.json.encode(varying),
        )

    @property
    def body(self) -> bytes:
        """Its whole spec, as JSON. It is made when it is read: thousands of jobs that
        wait for one commit share what their template has.
        """
        return _join_objects(self.own, self.template.rest)

    def add(self, fields: Mapping[str, Any]) -> None:
        """Add fields to its spec."""
        self.own = _join_objects(self.own, msgspec.json.encode(fields))

    def spec(self) -> dict[str, Any]:
        """The spec as plain data."""
        return msgspec.json.decode(self.body)


def _references(given: "_Varying | JobSpec") -> Mapping[str, Sequence[str]]:
    named = {field: tuple(getattr(given, field)) for field in PARENT_FIELDS}
    found = {field: references for field, references in named.items() if references}
    return found or _NO_REFERENCES


def _join_objects(first: bytes, second: bytes) -> bytes:
    """One JSON object with the fields of two, without decoding them."""
    empty = b"{}"
    if second == empty:
        return first
    if first == empty:
        return second
    return first[:-1] + b"," + second[1:]


_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class _Varying(msgspec.Struct):
    """The fields of a JobSpec that may differ within a template."""

    command: list[str]
    stdin: str | None = None
    name: _Name = "job"
    labels: dict[_Name, _Name] = {}
    depends_on: list[_Name] = []
    depends_on_failed: list[_Name] = []
    depends_on_any: list[_Name] = []
    idempotency_key: _Name | None = None

    def is_plain(self) -> bool:
        """True if it holds nothing that the JobSpec model would refuse."""
        if not self.command or not self.command[0] or "\0" in "".join(self.command):
            return False
        words = (
            self.name,
            self.idempotency_key or "",
            *self.depends_on,
            *self.depends_on_failed,
            *self.depends_on_any,
            *self.labels,
            *self.labels.values(),
        )
        return all(word.isprintable() for word in words)


_VARYING_IN_ORDER = (
    "name",
    "command",
    "stdin",
    "labels",
    *PARENT_FIELDS,
    "idempotency_key",
)
_varying_decoder = msgspec.json.Decoder(_Varying)
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Intake:
    """Reads jobs one by one, and caches their templates."""

    def __init__(
        self,
        tiers: Tiers,
        model_choice: ModelChoice | None = None,
        find_gpu: FindGpu = str,
        scripts: Scripts | None = None,
        container_providers: Callable[[], Collection[str]] = tuple,
        images: Sequence[Image] = IMAGES,
        submissions: Submissions | None = None,
        can_start: Callable[[Shape], bool] = lambda _: True,
        clock: Callable[[], float] = time.time,
        *,
        gives_gpu: bool = False,
        image_is_optional: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`container_providers()` names the providers that run containers, and
        `image_is_optional` those that run more. `can_start(shape)` says whether such a
        job could ever start here. `clock` gives the time from which deadlines such as
        `8h` count.

        `gives_gpu`: a job whose program is meant for a GPU gets one, unless it says how
        many it wants.
        """
        self._gpu_advice = GpuAdvice(can_start, gives_gpu=gives_gpu)
        self._clock = clock
        self._images = images
        self._submissions = submissions
        self._container_providers = container_providers
        self._image_is_optional = image_is_optional
        self._scripts = scripts or Scripts({})
        self._tiers = tiers
        self._model_choice = model_choice or ModelChoice({}, {}, lambda _: 0.0)
        self._find_gpu = find_gpu
        self._templates: dict[tuple[bytes, str | None], Template] = {}

    def read(
        self,
        body: msgspec.Raw,
        user: str | None = None,
        visibility: Visibility = EVERYTHING,
    ) -> tuple[PreparedJob, Sequence[str]]:
        """The job that `body` describes (a JobSpec, an S2 JobConfig or an S1 task, as
        JSON), and its command. `user` submits it, if that is known, and `visibility` is
        what exists for it. InvalidInputError.
        """
        try:
            given = _varying_decoder.decode(body)
            key = _template_key(body, user)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            given = None
            key = None
        if given is not None and key in self._templates and given.is_plain():
            template = self._templates[key]
            needs_gpu = template.may_need_gpu and gpu_sign(
                given.command, template.workdir
            )
            if not needs_gpu:
                return PreparedJob.of(template, given), given.command
        spec, warnings = self._validate(body, user)
        given_image = spec.image
        sign = gpu_sign(spec.command, spec.workdir) if may_need_gpu(spec) else None
        if sign is not None:
            spec = self._gpu_advice.apply(spec, sign, warnings)
        spec = self._with_image(spec, warnings)
        refuse_volumes_without_container(spec)
        if self._submissions:
            spec = self._submissions.pinned(spec, visibility)
        template = Template.of(spec, warnings)
        # What was read off the command does not suit the whole template.
        is_by_command = (
            spec.image != given_image or sign is not None or needs_resume_advice(spec)
        )
        # Nor does the newest version of a dataset suit a later job.
        if key is not None and not (is_by_command or spec.datasets):
            if len(self._templates) >= _MAX_TEMPLATES:
                self._templates.clear()
            self._templates[key] = template
        return PreparedJob.of(template, spec), spec.command

    def _validate(
        self, raw: msgspec.Raw, user: str | None
    ) -> tuple[JobSpec, list[str]]:
        """The spec with everything filled in but its image, and the warnings."""
        with reading_json():
            body = msgspec.json.decode(raw)
        spec, warnings = self._read_form(counted_from_now(body, self._clock()))
        spec = spec.model_copy(update={"user": user}) if user else spec
        if spec.image and not self._container_providers():
            spec = without_image(spec, warnings, is_s2=is_job_config(body))
        if spec.kind is JobKind.LLM:
            spec = self._model_choice.fill_in(spec)
        if spec.kind is JobKind.SCRIPT:
            spec = self._with_script(spec)
        if spec.kind in (JobKind.MODEL, JobKind.WORKER):
            raise InvalidInputError.of(
                "kind",
                f"{spec.kind} is for gpuyard's own jobs",
                "give command, script or prompt; see `gpuyard models` and `gpuyard"
                " batch`",
            )
        if spec.resources.gpus.uuid:
            warnings.append(_PREFERS if spec.kind is JobKind.LLM else _PINS)
        warnings += [
            f"{name} looks like a key, and the ledger keeps the values of environment;"
            f" run `gpuyard secret set {name}` once, and submit with --secret {name}"
            for name in spec.environment
            if looks_like_key(name)
        ]
        warnings += resume_advice(spec)
        if self._submissions:
            warnings += self._submissions.warnings(spec)
        if spec.tier:
            spec = with_tier(spec, self._tiers.get(spec.tier))
        return spec, warnings

    def _with_image(self, spec: JobSpec, warnings: list[str]) -> JobSpec:
        """Choose an image if the spec says `auto`, or if it names a provider that runs
        only containers.
        """
        has_none = spec.image is None and spec.kind is JobKind.COMMAND
        named = spec.provider or ""
        may_need_one = has_none and named in self._container_providers()
        needs_one = may_need_one and not self._image_is_optional(named)
        if spec.image != AUTO and not needs_one:
            return spec
        choice = image_for(spec, self._images)
        warnings.append(f"image {choice.image.reference} was chosen: {choice.why}")
        return spec.model_copy(update={"image": choice.image.reference})

    def _read_form(self, body: Any) -> tuple[JobSpec, list[str]]:
        """Read a JobSpec, an S2 JobConfig or an S1 task; the spec and the warnings."""
        if is_task(body):
            return spec_from_task(body, self._find_gpu, self._scripts)
        if is_job_config(body):
            return spec_from_config(body)
        return parse_spec(body), []

    def _with_script(self, spec: JobSpec) -> JobSpec:
        """Fill in what the settings say of a registered script, where the spec does not
        say otherwise.
        """
        name = self._scripts.named(spec.script or "")
        script = self._scripts[name]
        order = WorkerOrder(script.model_dump(mode="json", include=WORKER_FIELDS))
        options = {**spec.provider_options, **order.to_options()}
        update: dict[str, Any] = {
            "script": name,
            "args": {**script.args, **spec.args},
            "secrets": {**script.secrets, **spec.secrets},
            "provider_options": options,
        }
        if "gpus" not in spec.resources.model_fields_set:
            gpus = GpuRequest(
                count=script.gpus, memory_gb=script.memory_gb if script.gpus else None
            )
            update["resources"] = spec.resources.model_copy(update={"gpus": gpus})
        return spec.model_copy(update=update)


@contextmanager
def reading_json() -> Generator[None]:
    """Turns the errors of msgspec into InvalidInputError."""
    try:
        yield
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidInputError.of(
            "(body)", f"is not JSON: {error}", "send a JobSpec as a JSON object"
        ) from None
    except RecursionError:
        raise InvalidInputError.of(
            "(body)", "is nested too deeply", f"nest at most {MAX_DEPTH} levels"
        ) from None


def _template_key(
    body: msgspec.Raw, user: str | None
) -> tuple[bytes, str | None] | None:
    """The fields that all jobs of a template share, byte for byte, and who submits
    them; None for an S2 JobConfig or an S1 task, whose fields have other meanings, and
    for a deadline in words, which may count from now.
    """
    fields = _fields_decoder.decode(body)
    if is_job_config(fields) or is_task(fields):
        return None
    if bytes(fields.get("deadline", b"")).startswith(b'"'):
        return None
    shared = {name: value for name, value in fields.items() if name not in VARYING}
    return msgspec.json.encode(shared), user


def with_tier(spec: JobSpec, tier: Tier) -> JobSpec:
    """Fill in what `spec` leaves open from its tier: CPUs, memory, GPUs, time limit."""
    given = spec.resources
    gpus = given.gpus
    if tier.gpu_count:
        gpus = gpus.model_copy(update={"count": gpus.count or tier.gpu_count})
        # A class or a UUID already determines the memory of the GPU.
        memory_is_given = gpus.memory_gb or gpus.gpu_class or gpus.uuid
        if tier.gpu_memory_gb and not memory_is_given:
            gpus = gpus.model_copy(update={"memory_gb": tier.gpu_memory_gb})
    update = {
        "cpus": given.cpus or tier.cpu,
        "memory_gb": given.memory_gb or tier.memory_gb,
        "gpus": gpus,
    }
    resources = given.model_copy(update=update)
    timeout_s = spec.timeout_s or tier.max_runtime_s
    return spec.model_copy(
        update={"tier": tier.id, "resources": resources, "timeout_s": timeout_s}
    )


# --- jobs that were submitted together ---


def refuse_shared_keys(jobs: Sequence[PreparedJob]) -> None:
    """Raise InvalidInputError if two of `jobs` have the same idempotency key."""
    first: dict[str, int] = {}
    for position, job in enumerate(jobs):
        if job.key is not None and first.setdefault(job.key, position) != position:
            raise InvalidInputError.of(
                f"{position}.idempotency_key",
                f"{given_key(job.key)!r} is also that of job {first[job.key]}",
                "give each job a key of its own",
            )


def numbered(error: InvalidInputError, position: int) -> list[Fault]:
    """The faults of one job of several, with the position of the job in each field."""
    return [
        Fault(f"{position}.{fault.field}", fault.fault, fault.remedy)
        for fault in error.faults
    ]
