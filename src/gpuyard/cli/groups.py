"""`gpuyard cancel, wait`: commands for many jobs at once."""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli import suggest
from gpuyard.cli.arguments import AsJson
from gpuyard.cli.follow import GPUYARD_FAULT, TIMED_OUT, code_of, summary
from gpuyard.cli.moments import moment
from gpuyard.cli.options import given, pairs_of
from gpuyard.cli.output import print_page, task_name
from gpuyard.cli.session import connect
from gpuyard.domain.errors import GpuyardError, InvalidInputError

if TYPE_CHECKING:
    from gpuyard.client.sync import Client
    from gpuyard.domain.jobs import JobOutcome

References = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="JOB…",
        help="Ids, ends of ids, or names; `-` reads them from standard input.",
        autocompletion=suggest.live_jobs,
    ),
]
# More jobs than these are told about in one line.
FEW = 20
# How often a person sees how many are left.
_SHOW_S = 1.0
_OVER = frozenset({"completed", "failed", "cancelled", "timed_out"})


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(cancel)
    app.command()(wait)


def cancel(
    jobs: References = None,
    all_: Annotated[bool, typer.Option("--all", help="All that are not over.")] = False,
    state: Annotated[
        list[str] | None,
        typer.Option(
            help="Those in this state, such as queued; repeat for several.",
            autocompletion=suggest.live_states,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Those of this name; `*` and `?` are wild.",
            autocompletion=suggest.names,
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            help="Those with this label, NAME=VALUE.", autocompletion=suggest.labels
        ),
    ] = None,
    project: Annotated[
        str | None,
        typer.Option(help="Those of this project.", autocompletion=suggest.projects),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            help="Those that this user submitted, on a shared workstation.",
            autocompletion=suggest.users,
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Those submitted since, such as 2h or a date.")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask; for scripts.")
    ] = False,
    wait: Annotated[bool, typer.Option(help="Wait until they are over.")] = True,
    as_json: AsJson = False,
) -> None:
    """End jobs. One that is over stays as it is.

    Options that describe jobs mean the jobs of everybody on this server that are not
    over; with several, those that meet all. They ask first, with a count.
    """
    conditions = given(
        all=all_ or None,
        state=state or None,
        name=name,
        label=pairs_of("label", label or [], {}) or None,
        project=project,
        user=user,
        since=moment("--since", since) if since else None,
    )
    references = read_references(jobs or [])
    if bool(jobs) == bool(conditions):
        fault = "are named and described by options" if jobs else "are missing"
        remedy = "name jobs, or describe them by --all, --label, …, but not both"
        raise InvalidInputError.of("JOB…", fault, remedy)
    with connect() as client:
        if conditions and not yes:
            references = _confirmed(client, conditions)
            conditions = {}
        found = _cancelled(client, conditions, references)
        if wait and found:
            _wait_for_ends(client, found)
        if as_json:
            print_page(found)
        else:
            _tell_cancelled(client, found)


def read_references(words: Sequence[str]) -> list[str]:
    """The jobs that the words name; for `-`, those that standard input names.

    InvalidInputError if that names none.
    """
    found: list[str] = []
    for word in words:
        found += sys.stdin.read().split() if word == "-" else [word]
    if words and not found:
        raise InvalidInputError.of(
            "standard input", "names no job", "send ids or names, with spaces between"
        )
    return found


def _confirmed(client: "Client", conditions: Mapping[str, Any]) -> list[str]:
    """The jobs that meet the conditions, after a person agreed to cancel them."""
    from gpuyard.client import job_calls

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidInputError.of(
            "--yes",
            "is missing, and here is nobody to ask",
            "add --yes to cancel without a question",
        )
    found = client.call(job_calls.cancel_many({**conditions, "dry_run": True}))
    if found:
        count = _jobs(len(found))
        states = _counts(job["was"] for job in found)
        typer.confirm(f"Cancel {count} ({states})?", abort=True, err=True)
    return [job["id"] for job in found]


def _cancelled(
    client: "Client", conditions: Mapping[str, Any], references: Sequence[str]
) -> list[dict[str, Any]]:
    """Cancel them in one request; each with its state before and after."""
    from gpuyard.client import job_calls

    if not conditions and not references:
        return []
    body = conditions or {"jobs": list(references)}
    return client.call(job_calls.cancel_many(body))


def _wait_for_ends(client: "Client", found: Sequence[dict[str, Any]]) -> None:
    """Wait until all are over, and note the states in which they ended."""
    ids = [job["id"] for job in found]
    ended = {outcome.id: outcome.state.value for outcome in client.wait_for(*ids)}
    for job in found:
        job["state"] = ended[job["id"]]


def _tell_cancelled(client: "Client", found: Sequence[Mapping[str, Any]]) -> None:
    if not found:
        typer.echo("No unfinished job matches.")
    arrays = _tasks_by_array(found)
    for array_id, tasks in arrays.items():
        typer.echo(f"{array_id}: {_counts(task['state'] for task in tasks)}")
    found = [job for job in found if job.get("array_id") not in arrays]
    if len(found) > FEW:
        typer.echo(f"{_jobs(len(found))}: {_counts(job['state'] for job in found)}")
    for job in found if len(found) <= FEW else ():
        if job["was"] in _OVER:
            typer.echo(f"{job['id']} was {job['was']} already")
        else:
            typer.echo(summary(client.job(job["id"]).info))


def _tasks_by_array(
    jobs: Iterable[Mapping[str, Any]],
) -> dict[str, list[Mapping[str, Any]]]:
    """The tasks of arrays among the jobs, by array. An array of which only one task is
    among them is left out.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for job in jobs:
        if job.get("array_id"):
            found.setdefault(job["array_id"], []).append(job)
    return {array_id: tasks for array_id, tasks in found.items() if len(tasks) > 1}


def _jobs(count: int) -> str:
    return f"{count} job" if count == 1 else f"{count} jobs"


def _counts(states: Iterable[str]) -> str:
    counts = Counter(states)
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))


def wait(
    jobs: References = None,
    timeout: Annotated[
        str | None,
        typer.Option(help="Give up after so long, such as 2h; the exit code is 124."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Wait until jobs are over; the exit code is that of the first one, in the order
    given, that did not complete.
    """
    deadline = None if timeout is None else time.monotonic() + _seconds(timeout)
    references = read_references(jobs or [])
    if not references:
        raise InvalidInputError.of("JOB…", "is missing", "name the jobs to wait for")
    try:
        with connect(patient=True) as client:
            ended, left = _ends(client, references, deadline)
    except GpuyardError as error:
        typer.echo(f"gpuyard: {error}", err=True)
        sys.exit(GPUYARD_FAULT)
    if as_json:
        print_page(ended)
    else:
        _tell_ended(ended, left)
    codes = [code_of(job.state, job.exit_code, job.signal) for job in ended]
    failed = [code for code in codes if code]
    if left:
        sys.exit(TIMED_OUT)
    sys.exit(failed[0] if failed else 0)


def _ends(
    client: "Client", references: Sequence[str], deadline: float | None
) -> tuple[list["JobOutcome"], int]:
    """How those ended that are over by the deadline, and how many are not."""
    from gpuyard.client import job_calls

    shows = sys.stderr.isatty()
    pause_s = _SHOW_S if shows else job_calls.LONGEST_WAIT_S
    while True:
        left_s = pause_s if deadline is None else deadline - time.monotonic()
        wait_s = max(min(left_s, pause_s), 0.0)
        ended, waiting = client.call(job_calls.wait(references, wait_s))
        left = sum(waiting.values())
        if shows:
            states = [job.state.value for job in ended]
            states += [state.value for state in waiting.elements()]
            typer.echo(f"\r\x1b[K{_counts(states)}", nl=not left, err=True)
        if not left or left_s <= wait_s < pause_s:
            return ended, left


def _end_in_words(outcome: "JobOutcome") -> str:
    name = task_name(outcome.array_id, outcome.array_index) or outcome.id
    state = outcome.state.value
    if outcome.reason and outcome.reason != state:
        return f"{name} {state} · {outcome.reason}"
    return f"{name} {state}"


def _tell_ended(ended: Sequence["JobOutcome"], left: int) -> None:
    if len(ended) > FEW:
        typer.echo(_counts(outcome.state.value for outcome in ended))
    else:
        for outcome in ended:
            typer.echo(_end_in_words(outcome))
    if left:
        typer.echo(f"gpuyard: {_jobs(left)} not over yet", err=True)


def _seconds(text: str) -> float:
    from gpuyard.domain import units

    try:
        return units.seconds(text)
    except ValueError as error:
        fault, _, remedy = str(error).rpartition("; ")
        raise InvalidInputError.of("--timeout", fault, remedy) from None
