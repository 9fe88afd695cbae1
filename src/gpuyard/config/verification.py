"""The section `[verification]`: which executors are verified, and by which numbers."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from gpuyard.config.database import checked_url
from gpuyard.config.sections import DAY_S, Period, SettingsSection
from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.domain.own_nodes import OWN_NODES


def _postgresql(url: str | None) -> str | None:
    try:
        return checked_url(url, "database") if url else None
    except InvalidInputError as error:
        first = error.faults[0]
        raise ValueError(f"{first.fault}; {first.remedy}") from None


def _module_and_class(name: str | None) -> str | None:
    if name is None:
        return None
    module, _, class_name = name.partition(":")
    parts = [*module.split("."), class_name]
    if not all(part.isidentifier() for part in parts):
        raise ValueError(
            f"{quoted(name)} is not module:Class; write one such as"
            " mine.prompts:Generator"
        )
    return name


def _absolute(path: str | None) -> str | None:
    if path is not None and not path.startswith("/"):
        raise ValueError(
            f"{quoted(path)} is no absolute path; write one such as"
            " /opt/gpuyard/solver/solve.py"
        )
    return path


class VerificationPolicy(SettingsSection):
    """The numbers for each single class.

    Series: at most `max_series`, of which `series_per_run` are made at a time. A
    generator is asked for `surplus` more prompts than a series holds, because some of
    them are equal. Samples: enough that `target` are unused; each workload takes
    `prompts_per_series` of a series. Each pipeline runs every `…_every_s`.

    Answering starts no workload that would end after `answer_budget_s`, and is stopped
    after `answer_limit_s`; the other pipelines are stopped after `step_limit_s`. What
    is used, retired or was never answered is kept for `keep_s`, events and evidence for
    `keep_events_s`. The lock of a dead process is free after `lease_s`.
    """

    max_series: int = Field(default=3500, ge=1)
    series_per_run: int = Field(default=25, ge=1)
    surplus: int = Field(default=10, ge=0)
    target: int = Field(default=1536, ge=1)
    prompts_per_series: Literal[1] = 1
    generate_every_s: Period = 300.0
    sample_every_s: Period = 1800.0
    answer_every_s: Period = 300.0
    evict_every_s: Period = 3600.0
    answer_budget_s: Period = 260.0
    answer_limit_s: Period = 300.0
    step_limit_s: Period = 1800.0
    keep_s: Period = 2 * DAY_S
    keep_events_s: Annotated[Period, Field(ge=DAY_S)] = 30 * DAY_S
    lease_s: Period = 60.0


class EngineSettings(SettingsSection):
    """What answers the prompts on an executor.

    `options` are the engine's own, such as vLLM's `max_model_len`.
    """

    kind: Literal["mock", "openai", "transformers", "vllm"] = "mock"
    model: str = ""
    url: str | None = None
    options: dict[str, Any] = Field(default_factory=dict[str, Any])


class ExecutorSettings(SettingsSection):
    """A place where jobs can run, and what it claims to be.

    `class`: its GPU class. `provider`, `provider_options` and `image`: as in a job;
    `gpu`: the UUID of its GPU. `cpus`: the processors that its jobs get and are limited
    to; unset, each books one core without a limit. `python`: the interpreter that runs
    the solver there. `solver`: the path of `solve.py` in its image; unset, the solver's
    files are sent with each job. `trusted`: its answers count as correct, and others
    are compared with them. `stream`: the solver can reach us, so that it gets the seed
    at the barrier. `form`: whether its card is of the form `sxm` or `pcie`, if that is
    known: the same class differs in speed. `attested`: each of its GPUs has to attest
    itself, where an inventory is claimed.
    """

    gpu_class: str = Field(alias="class")
    form: Literal["pcie", "sxm"] | None = None
    attested: bool = False
    provider: str = OWN_NODES
    provider_options: dict[str, Any] = Field(default_factory=dict[str, Any])
    gpu: str | None = None
    cpus: float | None = Field(default=None, gt=0, le=10_000)
    image: str | None = None
    python: str = "python3"
    solver: Annotated[str | None, AfterValidator(_absolute)] = None
    engine: EngineSettings = EngineSettings()
    trusted: bool = False
    stream: bool = True
    place: str | None = None


class ToleranceSettings(SettingsSection):
    """That answers of a class may be compared by fingerprints.

    This is done where an executor and the trusted one differ in their class, or in the
    version or number format of their engine. `trusted`: the trusted executor, maybe of
    another class, that judges this one; unset, that of the class.
    `accept_unknown_draws`: let checks pass though the trusted engine cannot tell which
    tokens a seed gives, as vLLM cannot; then neither seed nor deadline proves anything.
    """

    trusted: str | None = None
    accept_unknown_draws: bool = False


class WatchSettings(SettingsSection):
    """Executors that the server verifies together, again and again.

    `executors`: names of the settings. `every`: how often. `claims`: what is asked for
    besides answers, as with `--claim`.
    """

    executors: tuple[str, ...] = Field(min_length=1)
    every: Period = 1800.0
    claims: tuple[Literal["inventory", "vram", "speed", "all"], ...] = ()


class VerificationSettings(VerificationPolicy):
    """`database`: the address of a PostgreSQL database, which servers may share; unset,
    a SQLite file in the home.

    `blobs`: where series and workloads are stored, a folder or a bucket; unset, a
    folder in the home. Solvers reach us at `host` and `port` (0: a free port), or at
    `public_host` if they know us by another name. `generator`: a generator of prompts
    as `module:Class`; unset, each class's trusted executor makes them. `watches`: what
    the server verifies by itself. `tolerances`: by class, that answers which differ by
    rounding may be compared by fingerprints. `attestation_root`: the file of the
    certificate (PEM) by which what GPUs attest is judged.
    """

    database: Annotated[str | None, AfterValidator(_postgresql)] = Field(
        default=None, repr=False
    )
    blobs: str | None = None
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    public_host: str | None = None
    generator: Annotated[str | None, AfterValidator(_module_and_class)] = None
    issuers: dict[str, str] = Field(default_factory=dict[str, str])
    executors: dict[str, ExecutorSettings] = Field(
        default_factory=dict[str, ExecutorSettings]
    )
    attestation_root: Path | None = None
    watches: dict[str, WatchSettings] = Field(default_factory=dict[str, WatchSettings])
    tolerances: dict[str, ToleranceSettings] = Field(
        default_factory=dict[str, ToleranceSettings]
    )

    @model_validator(mode="after")
    def _watches_name_executors(self) -> Self:
        for name, watch in self.watches.items():
            unknown = [one for one in watch.executors if one not in self.executors]
            if unknown:
                known = ", ".join(sorted(self.executors)) or "none"
                raise ValueError(
                    f"watches.{name}.executors: {quoted(unknown[0])} is no executor of"
                    f" the settings; name one of them ({known})"
                )
        for name, tolerance in self.tolerances.items():
            named = self.executors.get(tolerance.trusted or "")
            if tolerance.trusted is not None and not (named and named.trusted):
                raise ValueError(
                    f"tolerances.{name}.trusted: {quoted(tolerance.trusted)} is no"
                    " trusted executor of the settings; name one with trusted = true"
                )
        for name, executor in self.executors.items():
            if executor.attested and not self.attestation_root:
                raise ValueError(
                    f"executors.{name}.attested: nothing is there to judge attestations"
                    " by; set attestation_root"
                )
        return self
