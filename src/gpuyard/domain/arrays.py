"""Arrays: one job many times, each task with an index of its own."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field

from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.domain.jobs import Cost
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.states import JobState

MAX_TASKS = 100_000
"""The most tasks of one array."""
MAX_INDEX = 2**31 - 1
"""The largest index of a task."""
PLACEHOLDER = "{i}"
"""What stands for the index in a word of the command, in the value of a variable and in
the patterns of checkpoints and artifacts.
"""
VARIABLE = "GPUYARD_ARRAY_INDEX"
"""The variable that tells a program its index."""
_EXAMPLE = "write indices such as 0-9, 0-9:3 or 1,4,7-9, and %4 behind them for four at"
_PART = re.compile(r"(\d{1,20})(?:-(\d{1,20})(?::(\d{1,20}))?)?", re.ASCII)
_COUNT = re.compile(r"\d{1,20}", re.ASCII)
# `${i}` is a variable of the shell.
_PLACE = re.compile(r"(?<!\$)\{i\}")


@dataclass(frozen=True, slots=True)
class ArrayRange:
    """Which tasks an array has. `text` is what says so, without `at_most`: how many of
    them may run at once, None for any number.
    """

    text: str
    indices: Sequence[int]
    at_most: int | None = None


def _wrong(fault: str, remedy: str = f"{_EXAMPLE} once") -> InvalidInputError:
    return InvalidInputError.of("array", fault, remedy)


def array_range(given: object) -> ArrayRange:
    """The tasks that `0-1999%20` means, in the order in which they are named;
    InvalidInputError, which names the field `array`.
    """
    if not isinstance(given, str):
        raise _wrong(f"is {quoted(given)}, which is not text")
    (text, has_limit, limit) = given.strip().partition("%")
    at_most = _at_most(limit.strip()) if has_limit else None
    # Before the text is taken apart: it may have a million commas.
    _refuse_many(1 + text.count(","))
    words = [word.strip() for word in text.split(",")]
    ranges = [_part(word) for word in words]
    _refuse_many(sum(len(part) for part in ranges))
    indices = tuple(index for part in ranges for index in part)
    _refuse_repeated(indices)
    return ArrayRange(",".join(words), indices, at_most)


def _refuse_many(count: int) -> None:
    if count > MAX_TASKS:
        raise _wrong(
            f"has {count:,} tasks, and an array has at most {MAX_TASKS:,}",
            "submit several arrays",
        )


def _at_most(text: str) -> int:
    if not _COUNT.fullmatch(text):
        raise _wrong(f"has {quoted(text)} behind %, which is not a number of tasks")
    if int(text) == 0:
        raise _wrong("ends with %0, so that no task could ever run", "write %1 or more")
    if int(text) > MAX_TASKS:
        raise _wrong(
            f"has %{text}, and an array has at most {MAX_TASKS:,} tasks",
            f"write %{MAX_TASKS} or less",
        )
    return int(text)


def _part(word: str) -> range:
    """`4`, `7-9` or `0-9:3`."""
    if not word:
        raise _wrong("is empty or lacks an index at a comma")
    match = _PART.fullmatch(word)
    if match is None:
        raise _wrong(f"has {quoted(word)}, and an index is a whole number from 0 on")
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    step = 1 if match[3] is None else int(match[3])
    if last > MAX_INDEX or first > MAX_INDEX:
        raise _wrong(f"has {word}, and the largest index is {MAX_INDEX}")
    if last < first:
        raise _wrong(f"has {word}, which goes down", f"write {last}-{first}")
    if step == 0:
        fault = f"has {word}, and a step of 0 goes nowhere"
        raise _wrong(fault, "write a step of 1 or more")
    return range(first, last + 1, step)


def _refuse_repeated(indices: Sequence[int]) -> None:
    if len(set(indices)) == len(indices):
        return
    seen: set[int] = set()
    for index in indices:
        if index in seen:
            raise _wrong(f"names the index {index} twice", "name each index once")
        seen.add(index)


class ArraySpec(JobSpec):
    """A JobSpec with many tasks. `array` are their indices: `0-1999%20` are 2,000, of
    which at most 20 run at once; `0-9:3` is every third; `1,4,7-9` names some. `{i}` in
    a word of the command, in a value of `environment`, in `checkpoint.path` and in
    `artifacts` is the index, and so is `$GPUYARD_ARRAY_INDEX`.
    """

    array: str


# --- one task of an array ---


def task_words(words: Sequence[str], index: int) -> tuple[str, ...]:
    """The words of a command, for one task."""
    return tuple(_with_index(word, index) for word in words)


def _task_values(values: Mapping[str, str], index: int) -> dict[str, str]:
    return {name: _with_index(value, index) for name, value in values.items()}


def _with_index(text: str, index: int) -> str:
    return _PLACE.sub(str(index), text) if PLACEHOLDER in text else text


def task_body(body: Mapping[str, Any], index: int) -> dict[str, Any]:
    """The spec of one task, as JSON, from that of its array."""
    task = {**body, "command": list(task_words(body.get("command", ()), index))}
    if "environment" in body:
        task["environment"] = _task_values(body["environment"], index)
    checkpoint = cast("Mapping[str, Any]", body.get("checkpoint", {}))
    if "path" in checkpoint:
        path = _with_index(checkpoint["path"], index)
        task["checkpoint"] = {**checkpoint, "path": path}
    if "artifacts" in body:
        task["artifacts"] = list(task_words(body["artifacts"], index))
    return task


def task_spec(spec: JobSpec, index: int) -> JobSpec:
    """The spec of one task from that of its array."""
    update: dict[str, Any] = {"command": task_words(spec.command, index)}
    if spec.artifacts:
        update["artifacts"] = task_words(spec.artifacts, index)
    if spec.environment:
        update["environment"] = _task_values(spec.environment, index)
    path = spec.checkpoint.path
    if path is not None and PLACEHOLDER in path:
        path = _with_index(path, index)
        update["checkpoint"] = spec.checkpoint.model_copy(update={"path": path})
    return spec.model_copy(update=update)


def task_environment(index: int | None) -> dict[str, str]:
    """The variables that only a task has; none for a job that is no task."""
    return {} if index is None else {VARIABLE: str(index)}


def refuse_unsuitable(spec: Mapping[str, Any]) -> None:
    """InvalidInputError for a job, given as JSON, that cannot have many tasks."""
    for field in ("prompt", "script"):
        if spec.get(field):
            raise InvalidInputError.of(
                "array",
                f"is given with {field}, and only a command can have an index",
                "give a command; `gpuyard batch` runs a script over many items",
            )
    if spec.get("interactive"):
        raise InvalidInputError.of(
            "array",
            "is given with interactive, and nobody can type to many tasks at once",
            "remove one of them",
        )


# --- what people see of an array ---


def array_state(counts: Mapping[JobState, int]) -> JobState:
    """The state of an array whose tasks are in these states: `queued` while no task has
    begun, `running` until all are over, then `completed` if all are, else the worst.
    """
    present = {state for state, count in counts.items() if count}
    if present == {JobState.QUEUED}:
        return JobState.QUEUED
    if any(not state.terminal for state in present):
        return JobState.RUNNING
    for state in (JobState.FAILED, JobState.TIMED_OUT, JobState.CANCELLED):
        if state in present:
            return state
    return JobState.COMPLETED


def count_words(counts: Mapping[JobState, int]) -> str:
    """How many tasks are in each state, in words."""
    return ", ".join(f"{counts[s]} {s}" for s in JobState if counts.get(s))


class Array(BaseModel):
    """An array: one job with many tasks, each of which is a job, too.

    `tasks` are its indices as they were given, `total` is their number, and `at_most`
    how many may run at once, if that is limited. `counts` says how many are in each
    state; `state` sums that up. `cost` is that of all ended attempts; listings leave it
    out. Times are UTC seconds.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    kind: Literal["array"] = "array"
    name: str
    state: JobState
    tasks: str
    total: int
    at_most: int | None = None
    counts: dict[JobState, int] = Field(default_factory=dict[JobState, int])
    priority: int
    project: str | None = None
    user: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    cost: Cost | None = None
    warnings: list[str] = Field(default_factory=list)
    spec: dict[str, Any] | None = None

    @property
    def left(self) -> int:
        """How many tasks are not over."""
        return sum(n for state, n in self.counts.items() if not state.terminal)


def exact_amount(amount: object) -> Decimal:
    """Money as a database has added it up."""
    return round(Decimal(str(amount or 0)), 6).normalize() + Decimal(0)
