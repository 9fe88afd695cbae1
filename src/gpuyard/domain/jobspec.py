"""JobSpec: what a job runs and needs, but not where.

Every figure in `resources` is per node; `nodes` multiplies it. Memory may be written as
`"16GB"` and durations as `"2h"`; they are stored in gigabytes and seconds.
"""

from collections.abc import Collection, Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Self, cast

from pydantic import (
    BeforeValidator,
    Field,
    model_validator,
)

from gpuyard.domain import units
from gpuyard.domain.artifacts import check_artifacts
from gpuyard.domain.dataset_names import check_datasets
from gpuyard.domain.datasets import Reference
from gpuyard.domain.end_notices import NoticeAddresses
from gpuyard.domain.gpu_text import gpus_of
from gpuyard.domain.job_variables import check_environment
from gpuyard.domain.offers import Strategy
from gpuyard.domain.packages_field import check_packages
from gpuyard.domain.program_needs import ProgramNeeds
from gpuyard.domain.reasons import RetryCause
from gpuyard.domain.spec_values import (
    Arguments,
    ComputeCapability,
    Data,
    Digest,
    Gigabytes,
    GpuClassName,
    GpuCount,
    Input,
    Moment,
    Name,
    PackagesDigest,
    Pattern,
    Priority,
    Seconds,
    SecretName,
    SignalName,
    Text,
    UserName,
)
from gpuyard.domain.strict_model import StrictModel
from gpuyard.domain.workspaces import folder_name

_HOW_TO_GIVE = {
    "command": 'give the program and its arguments, such as ["python3", "train.py"]',
    "script": "name a registered script",
    "prompt": "give the text that a model shall answer",
}


class JobKind(StrEnum):
    """`command`: a process or container; `script`: a registered script; `llm`: a prompt
    for a resident model.

    gpuyard itself submits `model`, the server of a resident model, and `worker`, which
    processes a batch's items.
    """

    COMMAND = "command"
    SCRIPT = "script"
    LLM = "llm"
    MODEL = "model"
    WORKER = "worker"


class GpuRequest(StrictModel):
    """The GPUs of one node: their number, and the least that each must have.

    `uuid` pins devices; no job needs to.
    """

    count: GpuCount = 1
    memory_gb: Gigabytes | None = None
    compute_capability: ComputeCapability | None = None
    gpu_class: GpuClassName | None = None
    uuid: tuple[Name, ...] = ()

    @model_validator(mode="after")
    def _pins_match_count(self) -> Self:
        if self.uuid and len(self.uuid) != self.count:
            raise ValueError(
                f"uuid names {len(self.uuid)} GPUs but count is {self.count}; make them"
                " agree"
            )
        return self


def gpus_as_fields(value: Any) -> Any:
    """`gpus = 2` means two GPUs of any kind, `gpus = "A100:8"` eight of that class."""
    if isinstance(value, str):
        return gpus_of(value)
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return {"count": value} if is_count else value


def _words(value: Any) -> Any:
    """`"timeout,lost"` means the same as a list."""
    return value.replace(",", " ").split() if isinstance(value, str) else value


class Resources(StrictModel):
    """Needs per node.

    Without `cpus`, one core is booked and there is no limit; with `cpus`, the limit is
    enforced. The same goes for `memory_gb`.
    """

    cpus: float | None = Field(default=None, gt=0, le=10_000)
    memory_gb: Gigabytes | None = None
    nodes: int = Field(default=1, ge=1, le=10_000)
    gpus: Annotated[GpuRequest, BeforeValidator(gpus_as_fields)] = GpuRequest(count=0)

    @property
    def says_gpus(self) -> bool:
        """True when the job says how many GPUs it wants, be it none."""
        return "gpus" in self.model_fields_set


class CheckpointSpec(StrictModel):
    """Where checkpoints appear (a glob in `workdir`), and how to ask for one.

    `signal` is sent every `every_s`, and before a timeout ends the job; then `grace_s`
    passes before TERM. `resume_args` are appended to the command on resume; `{path}` in
    them is replaced by the checkpoint's path.
    """

    path: Pattern | None = None
    every_s: Seconds | None = None
    signal: SignalName | None = None
    grace_s: Annotated[float, BeforeValidator(units.seconds), Field(ge=0, le=86400)] = (
        30.0
    )
    resume_args: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _every_needs_signal(self) -> Self:
        if self.every_s is not None and self.signal is None:
            raise ValueError(
                "every_s needs signal: the signal your program answers with a"
                " checkpoint, such as USR1"
            )
        return self


class Allowed(StrictModel):
    """Where a job may run; empty means anywhere.

    `quarantined`: also where verification has failed.
    """

    providers: tuple[Name, ...] = ()
    regions: tuple[Name, ...] = ()
    quarantined: bool = False


class JobSpec(StrictModel):
    """A unit of work. Give one of `command`, `script` or `prompt`; `kind` follows from
    it.

    A command reads `stdin` on its standard input and then finds its end; without
    `stdin` it finds the end at once. The input of an `interactive` command stays open:
    it gets what people type who are attached to the job, until one of them ends it.
    `secrets` gives the name of the secret that each
    of these variables gets; the values are never part of a spec. A `held` job waits
    until it is released. Jobs in `depends_on` must complete before it starts, those in
    `depends_on_failed` must end otherwise, and those in `depends_on_any` must end.
    `retry_on`: after which ends it is tried again, `retry_count` times at most.
    `log_limit_gb`: how much of the output of each attempt is kept; unset, as the
    settings say. `deadline`: when it should have ended (UTC seconds).

    On the host of its submission, a job begins with `carried_environment`, the digest
    of what the shell that submitted it exported. Clients fill it in, unless `clean_env`
    is true. `submitted_code` is the digest of the code that its `workdir` had then:
    should that change while it waits, it runs the code as submitted, unless `live` is
    true. `user` is who submitted it, where the server knows that: it fills it in.

    `datasets`: `[PROJECT/]NAME[@VERSION][:PATH]`; the server fills in the versions.
    What matches `artifacts` is kept once it has completed; with `artifacts_always` also
    when it ends otherwise. `notify`: who is told when it ends
    (`domain/end_notices.py`). `packages` is the digest of the list of packages that the
    program needs; clients store the list, and fill it in. So they do with
    `program_needs`: what was read off the program, for later recommendations.
    """

    name: Name = "job"
    kind: JobKind = JobKind.COMMAND
    command: tuple[Text, ...] = ()
    stdin: Input | None = None
    interactive: bool = False
    script: Name | None = None
    prompt: str | None = None
    args: Arguments = Field(default_factory=dict)
    model: Name | None = None
    image: Name | None = None
    workdir: Text | None = None
    resources: Resources = Resources()
    tier: Name | None = None
    environment: dict[str, Text] = Field(default_factory=dict)
    secrets: dict[str, SecretName] = Field(default_factory=dict)
    carried_environment: Digest | None = None
    clean_env: bool = False
    submitted_code: Digest | None = None
    live: bool = False
    volumes: dict[Text, Text] = Field(default_factory=dict)
    workspace: Name | None = None
    datasets: tuple[Reference, ...] = ()
    packages: PackagesDigest | None = None
    program_needs: ProgramNeeds | None = None
    artifacts: tuple[Pattern, ...] = ()
    artifacts_always: bool = False
    timeout_s: Seconds | None = None
    retry_count: int = Field(default=0, ge=0, le=100)
    retry_on: Annotated[tuple[RetryCause, ...], BeforeValidator(_words)] = tuple(
        RetryCause
    )
    max_silence_s: Seconds | None = None
    log_limit_gb: Gigabytes | None = None
    priority: Priority = 3
    deadline: Moment | None = None
    project: Name | None = None
    user: UserName | None = None
    depends_on: tuple[Name, ...] = ()
    depends_on_failed: tuple[Name, ...] = ()
    depends_on_any: tuple[Name, ...] = ()
    held: bool = False
    spot: bool = False
    preemptible: bool = False
    max_price: Decimal | None = Field(default=None, gt=0)
    strategy: Strategy | None = None
    allowed: Allowed = Allowed()
    provider: Name | None = None
    provider_options: Data = Field(default_factory=dict)
    checkpoint: CheckpointSpec = CheckpointSpec()
    labels: dict[Name, Name] = Field(default_factory=dict)
    estimated_duration_s: Seconds | None = None
    notify: NoticeAddresses = ()
    idempotency_key: Name | None = None

    def given_json(self, exclude: Collection[str] = ()) -> dict[str, Any]:
        """The spec as JSON without the fields that have their default, except that a
        job which says that it wants no GPU keeps saying so.
        """
        given = self.model_dump(
            mode="json", exclude_defaults=True, exclude=set(exclude)
        )
        wants_none = self.resources.says_gpus and not self.resources.gpus.count
        if wants_none and self.tier is None:
            given.setdefault("resources", {})["gpus"] = {"count": 0}
        return given

    @model_validator(mode="before")
    @classmethod
    def _kind_follows(cls, data: Any) -> Any:
        """Set `kind` if a script or a prompt is given without it."""
        if not isinstance(data, Mapping) or "kind" in data:
            return data  # pyright: ignore[reportUnknownVariableType]  (pydantic checks it next)
        given = cast("Mapping[str, Any]", data)
        kind = JobKind.COMMAND
        if given.get("script"):
            kind = JobKind.SCRIPT
        elif given.get("prompt"):
            kind = JobKind.LLM
        return {**given, "kind": kind}

    @model_validator(mode="after")
    def _work_matches_kind(self) -> Self:
        wanted = {
            JobKind.COMMAND: "command",
            JobKind.SCRIPT: "script",
            JobKind.LLM: "prompt",
            JobKind.MODEL: "command",
            JobKind.WORKER: "script",
        }[self.kind]
        for field in ("command", "script", "prompt"):
            given = bool(getattr(self, field))
            if given != (field == wanted):
                if given:
                    raise ValueError(
                        f"@{field}@does not belong in a job of kind {self.kind}; give"
                        f" {wanted} and no {field}"
                    )
                raise ValueError(f"@{wanted}@is missing; {_HOW_TO_GIVE[wanted]}")
        if self.stdin is not None and self.kind is not JobKind.COMMAND:
            raise ValueError(
                f"@stdin@does not belong in a job of kind {self.kind}; only a command"
                " can have one"
            )
        if self.command and not self.command[0]:
            raise ValueError(
                "@command@begins with an empty string; the first element is the program"
                " to run"
            )
        return self

    @model_validator(mode="after")
    def _input_can_stay_open(self) -> Self:
        if not self.interactive:
            return self
        if self.kind is not JobKind.COMMAND:
            raise ValueError(
                f"@interactive@does not belong in a job of kind {self.kind}; only a"
                " command can have it"
            )
        if self.stdin is not None:
            raise ValueError(
                "@interactive@is true, and stdin is given, which is all that the"
                " command would read; remove one of them"
            )
        if self.image is not None:
            raise ValueError(
                "@interactive@is true, and image is given, but gpuyard passes no input"
                " on to containers; remove one of them"
            )
        if self.resources.nodes > 1:
            raise ValueError(
                f"@interactive@is true, and resources.nodes is {self.resources.nodes},"
                " but only a job on one node can be typed to; remove one of them"
            )
        return self

    @model_validator(mode="after")
    def _workspace_has_a_user(self) -> Self:
        if self.workspace and self.kind is not JobKind.COMMAND:
            raise ValueError(
                f"@workspace@does not belong in a job of kind {self.kind}; a command"
                " can have one"
            )
        if self.workspace and "/workspace" in self.volumes:
            raise ValueError(
                "@volumes@has '/workspace', where containers find the job's workspace;"
                " choose another"
            )
        if not self.workspace:
            return self
        for field, name in (("workspace", self.workspace), ("project", self.project)):
            if name and len(folder_name(name)) > 255:
                raise ValueError(
                    f"@{field}@is too long for the name of a folder; shorten it"
                )
        return self

    @model_validator(mode="after")
    def _what_nodes_provide_has_a_place(self) -> Self:
        is_command = self.kind is JobKind.COMMAND
        has_image = self.image is not None
        check_datasets(self.datasets, is_command=is_command, has_image=has_image)
        check_packages(self.packages, is_plain=is_command and not has_image)
        check_artifacts(
            self.artifacts, always=self.artifacts_always, is_command=is_command
        )
        return self

    @model_validator(mode="after")
    def _environment_is_legal(self) -> Self:
        check_environment(self.environment)
        check_environment(self.secrets, "secrets")
        if self.clean_env and self.carried_environment:
            raise ValueError(
                "@clean_env@is true, and carried_environment is given; remove one of"
                " them"
            )
        if self.live and self.submitted_code:
            raise ValueError(
                "@live@is true, and submitted_code is given; remove one of them"
            )
        for name in self.secrets.keys() & self.environment.keys():
            raise ValueError(
                f"@secrets.{name}@is set in environment, too; remove one of them"
            )
        return self
