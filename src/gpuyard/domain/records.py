"""The record of a run: all that is known of what a job ran, and how two runs differ."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field

from gpuyard.domain.jobs import TrackerPage

RERUN_LABEL = "rerun_of"
"""The label of a job that repeats another one; its value is the id of that."""
_SEED = "GPUYARD_SEED"
_SEED_OPTIONS = ("--seed", "--random-seed", "--random_seed", "seed")


class CodeRecord(BaseModel):
    """`commit` is git's, and `diff` how the tracked files differed from it. `stored`:
    the code is still there, so that the job can be repeated.
    """

    digest: str
    stored: bool
    commit: str = ""
    dirty: bool = False
    diff: str = ""


class PackagesRecord(BaseModel):
    """`file` named them; `installed` are those of the last attempt, with versions."""

    digest: str
    stored: bool
    file: str = ""
    python: str = ""
    installed: list[str] = Field(default_factory=list)


class AttemptRecord(BaseModel):
    """With what one attempt ran: `facts` has `host`, `gpus`, `driver`, `python` and
    `gpuyard` (its version), as far as they are known. Times are UTC seconds.
    """

    number: int
    node: str | None
    gpus: list[str]
    started_at: float | None
    ended_at: float | None
    exit_code: int | None
    facts: dict[str, str] = Field(default_factory=dict)


class RunDifference(BaseModel):
    """Something that differs from the run that this one repeats."""

    what: str
    before: str
    now: str


class RunRecord(BaseModel):
    """`metrics` has the last value of each metric, `links` the pages of trackers that
    show the run. `rerun_of` is the job that this one
    repeats, and `differences` says how it differed.
    """

    id: str
    name: str
    state: str
    command: list[str]
    workdir: str | None = None
    seed: str | None = None
    environment: dict[str, str] = Field(default_factory=dict)
    secrets: list[str] = Field(default_factory=list)
    carried_environment: str | None = None
    code: CodeRecord | None = None
    packages: PackagesRecord | None = None
    datasets: list[str] = Field(default_factory=list)
    workspace: str | None = None
    needs: dict[str, Any] = Field(default_factory=dict)
    attempts: list[AttemptRecord] = Field(default_factory=list[AttemptRecord])
    metrics: dict[str, float] = Field(default_factory=dict)
    links: list[TrackerPage] = Field(default_factory=list[TrackerPage])
    rerun_of: str | None = None
    differences: list[RunDifference] = Field(default_factory=list[RunDifference])


def seed_of(command: list[str], environment: Mapping[str, str]) -> str | None:
    """The seed that the variables or the command of a job name, if they do."""
    if _SEED in environment:
        return environment[_SEED]
    for at, word in enumerate(command):
        (name, equals, value) = word.partition("=")
        if name not in _SEED_OPTIONS:
            continue
        if equals:
            return value
        if at + 1 < len(command) and name.startswith("-"):
            return command[at + 1]
    return None


def differences(before: RunRecord, now: RunRecord) -> list[RunDifference]:
    """How a run differs from the one that it repeats."""
    first = _compared(before)
    second = _compared(now)
    names = dict.fromkeys((*first, *second))
    return [
        RunDifference(what=name, before=first.get(name, ""), now=second.get(name, ""))
        for name in names
        if first.get(name, "") != second.get(name, "")
    ]


def _compared(record: RunRecord) -> dict[str, str]:
    """What is compared of a run, in the order in which it is told."""
    last = record.attempts[-1] if record.attempts else None
    found: dict[str, str] = {"state": record.state}
    if last:
        facts = {name: fact for name, fact in last.facts.items() if name != "packages"}
        found |= {"exit code": str(last.exit_code), **facts}
    if record.code:
        found["code"] = record.code.digest
    if record.packages:
        versions = [line.partition("==") for line in record.packages.installed]
        found |= {f"package {name}": version for name, _, version in versions}
    found |= {name: f"{value:.10g}" for name, value in record.metrics.items()}
    return found
