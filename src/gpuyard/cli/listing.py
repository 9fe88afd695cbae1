"""`gpuyard jobs`: used so often that it starts without Typer and Pydantic."""

from collections.abc import Callable, Sequence
from typing import Any

from gpuyard.cli.listed_job import ListedJob
from gpuyard.cli.moments import moment
from gpuyard.cli.output import (
    ago,
    duration_of,
    money,
    print_page,
    print_table,
    progress_words,
    say,
    short_id,
    task_name,
)
from gpuyard.cli.session import reading

_PAGE = 1000  # the most the server gives at once
HELD = "held; gpuyard release JOB"
_REPEATED = ("state", "label")
_OPTIONS = {
    "--state": "state",
    "--name": "name",
    "--project": "project",
    "--user": "user",
    "--label": "label",
    "--since": "since",
    "--array": "array",
    "--limit": "limit",
    "-n": "limit",
}


def plain_options(words: Sequence[str]) -> dict[str, Any] | None:
    """The arguments of `list_jobs` that `words` mean.

    None when they are anything but known options; then Typer parses them.
    """
    given: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        if word == "--json":
            given["as_json"] = True
            continue
        name = _OPTIONS.get(word)
        value = next(rest, None)
        if name is None or value is None or value.startswith("-"):
            return None
        if name in _REPEATED:
            given[name] = [*given.get(name, ()), value]
        elif name != "limit":
            given[name] = value
        elif _is_count(value):
            given["limit"] = int(value)
        else:
            return None
    return given


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and int(text) > 0


def list_jobs(
    *,
    state: Sequence[str] | None = None,
    name: str | None = None,
    project: str | None = None,
    user: str | None = None,
    label: Sequence[str] | None = None,
    since: str | None = None,
    array: str | None = None,
    limit: int = 30,
    as_json: bool = False,
) -> None:
    """Print jobs, newest first: each array as one line, or the tasks of `array`."""
    filters = {
        "state": state,
        "name": name,
        "project": project,
        "user": user,
        "label": label,
        "since": moment("--since", since) if since else None,
        "array": array,
    }
    given = {key: value for key, value in filters.items() if value}
    is_filtered = bool(given)
    if array is None:
        given["folded"] = "true"
    with reading() as get:
        found = _newest(get, limit, given)
        more = len(found) == limit
        if more and not state:
            # Jobs that have not ended are shown even behind newer ones that have.
            shown = {job["id"] for job in found}
            given["state"] = ["running", "assigned", "unknown", "queued"]
            found += [
                job for job in _newest(get, limit, given) if job["id"] not in shown
            ]
    if as_json:
        print_page(found, found[-1]["id"] if more else None)
        return
    empty = "No jobs. Start one with `gpuyard run -- COMMAND`."
    if is_filtered:
        empty = "No such job."
    _print_jobs([ListedJob.of(document) for document in found], empty)
    if more:
        say(f"The newest {limit} and what is not over yet; -n {limit * 10} shows more.")


def _print_jobs(jobs: Sequence[ListedJob], empty: str) -> None:
    """A row for each job or array; with their users, if one of them has any."""
    columns = ["JOB", "NAME", "STATE", "PRIO", "SUBMITTED", "RAN", "COST", "PROGRESS"]
    rows = [_row(job) for job in jobs]
    if any(job.user for job in jobs):
        columns.insert(1, "USER")
        rows = [
            (row[0], job.user, *row[1:]) for job, row in zip(jobs, rows, strict=True)
        ]
    print_table(columns, rows, empty=empty)


def _row(job: ListedJob) -> tuple[Any, ...]:
    progress = " ".join(progress_words(job.progress)[:3]) if job.progress else ""
    return (
        task_name(job.array_id, job.array_index) or short_id(job.id),
        job.name,
        job.state,
        job.priority,
        ago(job.created_at),
        duration_of(job),
        money(job.cost) if job.cost else "",
        HELD if job.held else progress or job.reason,
    )


def _newest(
    get: Callable[[str, dict[str, Any]], Any], limit: int, given: dict[str, Any]
) -> list[dict[str, Any]]:
    """At most `limit` job resources, newest first."""
    found: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        page = get(
            "/api/v1/jobs", {"limit": min(limit - len(found), _PAGE), **given, **cursor}
        )
        found += page["items"]
        if page["next"] is None or len(found) >= limit:
            return found
        cursor = {"cursor": page["next"]}
