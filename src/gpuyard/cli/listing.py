"""`gpuyard jobs`: asked for all day, also by scripts a thousand at once, so it starts without Typer and the models."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from gpuyard.cli.output import ago, duration_of, money, print_page, print_table, progress_words, say, short_id
from gpuyard.cli.session import reading

_PAGE = 1000  # the most the server gives at once
_OPTIONS = {"--state": "state", "--name": "name", "--project": "project", "--limit": "limit", "-n": "limit"}


def plain_options(words: Sequence[str]) -> dict[str, Any] | None:
    """The arguments of `list_jobs` that `words` mean; None when that is not plain, and Typer shall read them."""
    given: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        name, value = _OPTIONS.get(word), None
        if name and ((value := next(rest, "-")).startswith("-") or (name == "limit" and not _is_count(value))):
            return None
        if word == "--json":
            given["as_json"] = True
        elif name is None or value is None:
            return None
        elif name == "state":
            given["state"] = [*given.get("state", ()), value]
        else:
            given[name] = int(value) if name == "limit" else value
    return given


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and int(text) > 0


def list_jobs(
    *,
    state: Sequence[str] | None = None,
    name: str | None = None,
    project: str | None = None,
    limit: int = 30,
    as_json: bool = False,
) -> None:
    """Print jobs, newest first."""
    given = {key: value for key, value in (("state", state), ("name", name), ("project", project)) if value}
    with reading() as get:
        found = _newest(get, limit, given)
        more = len(found) == limit
        if more and not state:
            # What is not over yet is never hidden behind newer jobs that are.
            shown = {job["id"] for job in found}
            given["state"] = ["running", "assigned", "unknown", "queued"]
            found += [job for job in _newest(get, limit, given) if job["id"] not in shown]
    if as_json:
        print_page(found, found[-1]["id"] if more else None)
        return
    rows = [(short_id(j.id), j.name, j.state, j.priority, ago(j.created_at), duration_of(j), money(j.cost),
             " ".join(progress_words(j.progress)[:3]) or j.reason) for j in map(ListedJob.of, found)]  # fmt: skip
    columns = ("JOB", "NAME", "STATE", "PRIO", "SUBMITTED", "RAN", "COST", "PROGRESS")
    filtered = bool(state or name or project)
    print_table(
        columns, rows, empty="No such job." if filtered else "No jobs. Start one with `gpuyard run -- COMMAND`."
    )
    if more:
        say(f"The newest {limit} and what is not over yet; -n {limit * 10} shows more.")


def _newest(get: Callable[[str, dict[str, Any]], Any], limit: int, given: dict[str, Any]) -> list[dict[str, Any]]:
    """At most `limit` job resources, newest first."""
    found: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        page = get("/api/v1/jobs", {"limit": min(limit - len(found), _PAGE), **given, **cursor})
        found += page["items"]
        if page["next"] is None or len(found) >= limit:
            return found
        cursor = {"cursor": page["next"]}


@dataclass(frozen=True, slots=True)
class ListedCost:
    """What it has cost so far."""

    amount: Decimal
    currency: str


@dataclass(frozen=True, slots=True)
class ListedAttempt:
    """When an attempt ran; UTC seconds."""

    started_at: float | None
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class ListedProgress:
    """How far it is."""

    step: int | None
    total: int | None
    epoch: float | None
    epochs: int | None
    eta_s: float | None
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ListedJob:
    """What a line says; names as in the job resource."""

    id: str
    name: str
    state: str
    priority: int
    created_at: float
    reason: str | None
    cost: ListedCost
    progress: ListedProgress
    attempts: Sequence[ListedAttempt]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "ListedJob":
        """The line of one job resource."""
        cost, progress = document["cost"], document["progress"]
        return cls(
            **{name: document[name] for name in ("id", "name", "state", "priority", "created_at", "reason")},
            cost=ListedCost(Decimal(cost["amount"]), cost["currency"]),
            progress=ListedProgress(**{name: progress[name] for name in ListedProgress.__slots__}),
            attempts=[ListedAttempt(a["started_at"], a["ended_at"]) for a in document["attempts"]],
        )
