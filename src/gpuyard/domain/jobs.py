"""The job as people see it: the resource that the HTTP API serves and the SDK returns.

Times are UTC seconds.
"""

from decimal import Decimal
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from gpuyard.domain.jobspec import JobKind
from gpuyard.domain.states import AttemptState, JobState


class _View(BaseModel):
    # A newer server may send fields that an older client does not know.
    model_config = ConfigDict(frozen=True, extra="ignore")


class Cost(_View):
    """Money spent so far; `basis` is `list` (own hardware: the tier's list price ×
    seconds) or `offer` (the price of the offer).

    A prompt has the basis `share` and the amount 0, because the job of its model's
    server pays. `share` says how much of that the prompt took. So the amounts of all
    jobs add up to what was spent.

    `parts` says what of the amount was paid for a rented machine itself, for its disk,
    its public address and its traffic; empty if that is not told apart. `part_prices`
    is what an hour of each costs, and `price_sources` who gave that price, and when.
    """

    amount: Decimal = Decimal(0)
    share: Decimal | None = None
    currency: str = "USD"
    basis: str = "list"
    price_per_hour: Decimal = Decimal(0)
    tier: str | None = None
    parts: dict[str, Decimal] = Field(default_factory=dict[str, Decimal])
    part_prices: dict[str, Decimal] = Field(default_factory=dict[str, Decimal])
    price_sources: dict[str, str] = Field(default_factory=dict[str, str])


class TrackerPage(_View):
    """A page of W&B or MLflow that shows a job; `run` is the run's id there."""

    tracker: str = Field(pattern=r"^[a-z]{1,20}$")
    # The letters are written out: with those of all languages, as in `\w`, this pattern
    # would take 6 MB.
    run: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    url: str = Field(pattern=r"^https?://[^\s\x00-\x1f\x7f]+$", max_length=1000)


class Progress(_View):
    """The latest reading of a job's output.

    `metrics` holds each metric's last value; `rate` is steps per second. `links` are
    the pages of trackers that it names.
    """

    step: int | None = None
    total: int | None = None
    epoch: float | None = None
    epochs: int | None = None
    eta_s: float | None = None
    rate: float | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    links: list[TrackerPage] = Field(default_factory=list[TrackerPage], max_length=20)


class Attempt(_View):
    """One execution of the job.

    `ran_s`: how long it has run, in seconds. Clocks that are set do not change it, so
    it may differ from `ended_at` less `started_at`.
    """

    id: str
    number: int
    state: AttemptState
    token: int
    provider: str
    provider_ref: str | None = None
    node: str | None = None
    gpus: list[str] = Field(default_factory=list)
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    ran_s: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None
    message: str | None = None
    limits: dict[str, str] = Field(default_factory=dict)
    usage: dict[str, float] = Field(default_factory=dict)
    resumed_from: str | None = None
    cost: Cost = Cost()


class Checkpoint(_View):
    """A complete checkpoint kept by gpuyard; `path` is as the program wrote it, `size`
    in bytes.
    """

    id: str
    job_id: str
    attempt_id: str
    path: str
    step: int | None = None
    size: int
    sha256: str
    created_at: float
    directory: bool = False
    kept: bool = True


class Environment(_View):
    """How the environment that a job carries differs from the server's own: names of
    variables. `stored` is false when it is no longer stored, and nothing is known.
    """

    stored: bool = True
    added: list[str] = Field(default_factory=list)
    missing: list[str] = Field(default_factory=list)
    changed: list[str] = Field(default_factory=list)


class Code(_View):
    """The code that a job was submitted with. `commit` is git's; `dirty`: tracked files
    differed from it. `changed` are the files that have changed since; `folder` is where
    the job found them as submitted, if it had to.

    `stored` is false when it is no longer stored, and nothing else is known.
    """

    digest: str
    stored: bool = True
    commit: str = ""
    dirty: bool = False
    changed: list[str] = Field(default_factory=list)
    folder: str | None = None


class Job(_View):
    """A job: the essentials of its spec, its state and its history.

    A queued job that is `held` starts only after its release. `deadline` is when it
    should have ended. `user` submitted it, on a shared workstation. The task of an
    array has the id of that, and its index.
    """

    id: str
    name: str
    kind: JobKind
    state: JobState
    reason: str | None = None
    exit_code: int | None = None
    priority: int
    deadline: float | None = None
    project: str | None = None
    user: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    provider: str | None = None
    provider_ref: str | None = None
    node: str | None = None
    gpus: list[str] = Field(default_factory=list)
    attempts: list[Attempt] = Field(default_factory=list[Attempt])
    progress: Progress = Progress()
    cost: Cost = Cost()
    usage: dict[str, float] = Field(default_factory=dict)
    checkpoints: int = 0
    held: bool = False
    array_id: str | None = None
    array_index: int | None = None
    warnings: list[str] = Field(default_factory=list)
    environment: Environment | None = None
    code: Code | None = None
    spec: dict[str, Any] | None = None


class JobOutcome(_View):
    """How a job ended, in short; `signal` is what ended its last attempt, if anything
    did. The task of an array has the id of that, and its index.
    """

    id: str
    name: str
    state: JobState
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    array_id: str | None = None
    array_index: int | None = None
