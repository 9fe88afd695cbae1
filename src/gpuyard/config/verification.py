"""The section `[verification]`: which executors are verified, and the numbers by which it is done."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from gpuyard.config.database import checked_url
from gpuyard.config.sections import Period, Section
from gpuyard.domain.errors import InvalidInputError, quoted

DAY_S = 86400.0


def _postgresql(url: str | None) -> str | None:
    try:
        return checked_url(url, "database") if url else None
    except InvalidInputError as error:
        raise ValueError("{0.fault}; {0.remedy}".format(error.faults[0])) from None


def _module_and_class(name: str | None) -> str | None:
    module, _, thing = (name or "").partition(":")
    if name is not None and not (thing.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ValueError(f"{quoted(name)} is not module:Class; write one such as mine.prompts:Generator")
    return name


def _absolute(path: str | None) -> str | None:
    if path is not None and not path.startswith("/"):
        raise ValueError(f"{quoted(path)} is no absolute path; write one such as /opt/gpuyard/solver/solve.py")
    return path


class VerificationPolicy(Section):
    """The numbers, each of a single class.

    Series: at most `max_series` of them, `series_per_run` more at a time; a generator is asked for `surplus` prompts
    more than a series holds, since some of them are the same. Samples: so many that `target` are unused; of a series
    each workload takes `prompts_per_series`. Each pipeline has its turn `…_every_s`. Answering starts no workload that
    would end after `answer_budget_s`, and is stopped after `answer_limit_s`, the others after `step_limit_s`; what is
    used, retired or was never answered is kept for `keep_s`, events and evidence for `keep_events_s`. A lock that a
    dead process held is free after `lease_s`.
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


class EngineSettings(Section):
    """What solves the prompts on an executor. `options` are the engine's own, such as vLLM's `max_model_len`."""

    kind: Literal["mock", "openai", "transformers", "vllm"] = "mock"
    model: str = ""
    url: str | None = None
    options: dict[str, Any] = Field(default_factory=dict[str, Any])


class ExecutorSettings(Section):
    """A place where jobs can run, and what it is said to be.

    `class`: its class. `provider`, `provider_options` and `image`: as a job has them; `gpu`: the UUID of the one GPU
    that is meant. `cpus`: what its jobs take of the processor and are held to; unset, each books a core and is free.
    `python`: the interpreter that runs the solver there. `solver`: where its image has the solver's `solve.py`; unset,
    the solver's files travel with each job. `trusted`: its answers are taken for true, and others are held against
    them. `stream`: the solver can reach us, so that it gets the seed at the barrier.
    """

    gpu_class: str = Field(alias="class")
    provider: str = "local"
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


class VerificationSettings(VerificationPolicy):
    """`database`: the address of a PostgreSQL database, which servers may share; unset, a SQLite file in the home.

    `blobs`: where series and workloads are kept, a folder or a bucket; unset, a folder in the home. `host` and `port`
    are where solvers reach us (port 0: a free one), at `public_host` where they know us by another name. `generator`:
    another one, as `module:Class`; unset, prompts are made by each class's trusted executor.
    """

    database: Annotated[str | None, AfterValidator(_postgresql)] = Field(default=None, repr=False)
    blobs: str | None = None
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    public_host: str | None = None
    generator: Annotated[str | None, AfterValidator(_module_and_class)] = None
    issuers: dict[str, str] = Field(default_factory=dict[str, str])
    executors: dict[str, ExecutorSettings] = Field(default_factory=dict[str, ExecutorSettings])
