"""`gpuyard jobs, show, logs, resume, why, events`."""

import json
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli import suggest
from gpuyard.cli.arrays import job_or_array, resume_array, show_array
from gpuyard.cli.follow import GPUYARD_FAULT, follow, leave
from gpuyard.cli.listing import list_jobs
from gpuyard.cli.moments import moment
from gpuyard.cli.options import given, gpu_request
from gpuyard.cli.output import (
    clock,
    count,
    money,
    print_fields,
    print_json,
    print_page,
    print_table,
    short_id,
)
from gpuyard.cli.session import connect
from gpuyard.cli.shown_fields import shown_fields
from gpuyard.domain.errors import (
    GpuyardError,
    InvalidInputError,
    IsArrayError,
    NotFoundError,
)
from gpuyard.domain.units import format_duration

if TYPE_CHECKING:
    from gpuyard.client.sync import Client
    from gpuyard.domain.jobs import Job

_PENDING = ("queued", "assigned")
# So that one can list the jobs of a schedule that was deleted.
_WHOLE_ID = re.compile(r"schedule_[0-9a-f]{32}")
_JOB_ID = re.compile(r"job_[0-9a-f]{32}")
# `why` asks for the names of so many jobs.
_MOST_NAMED = 10
# How many events are listed without `--limit`.
_ON_SCREEN = 20
_IN_A_PIPE = 1000
Reference = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="An id, the end of one, or a name; of a task of an array: ARRAY_7.",
        autocompletion=suggest.jobs,
    ),
]
EndedReference = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="An id, the end of one, or a name.",
        autocompletion=suggest.ended_jobs,
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="One JSON document, for programs.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (jobs, show, logs, resume, why, events):
        app.command()(command)


def jobs(
    state: Annotated[
        list[str] | None,
        typer.Option(
            help="Only in this state; repeat for several.",
            autocompletion=suggest.states,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Only of this name; `*` and `?` are wild.",
            autocompletion=suggest.names,
        ),
    ] = None,
    project: Annotated[
        str | None,
        typer.Option(help="Only of this project.", autocompletion=suggest.projects),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            help="Only what this user submitted, on a shared workstation.",
            autocompletion=suggest.users,
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            help="Only with this label, NAME=VALUE; repeat for several.",
            autocompletion=suggest.labels,
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Only what was submitted since, such as 2h or 2026-11-25."),
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="Only what this schedule has submitted.")
    ] = None,
    array: Annotated[
        str | None,
        typer.Option(help="The tasks of this array, which else is one line."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", help="At most so many.", min=1)
    ] = 30,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    labels = [*(label or ()), *([_label_of(schedule)] if schedule else ())]
    list_jobs(
        state=state,
        name=name,
        project=project,
        user=user,
        label=labels,
        since=since,
        array=array,
        limit=limit,
        as_json=as_json,
    )


def _label_of(schedule: str) -> str:
    """The label of the jobs that a schedule has submitted, as a filter."""
    from gpuyard.domain.schedules import LABEL

    if not _WHOLE_ID.fullmatch(schedule):
        with connect() as client:
            schedule = client.schedule(schedule).id
    return f"{LABEL}={schedule}"


def show(job: Reference, as_json: AsJson = False) -> None:
    """Show everything about a job, or about an array."""
    from gpuyard.client.sync_job import JobHandle

    with connect() as client:
        found = job_or_array(client, job)
        if not isinstance(found, JobHandle):
            show_array(client, found, as_json=as_json)
            return
        info = found.info
        if as_json:
            print_json(info)
            return
        gpus = _gpus(client, info)
        waits = ""
        if info.state in _PENDING:
            reason = found.why()
            waits = reason["summary"] if reason["pending"] else ""
    print_fields(shown_fields(info, gpus, waits))
    _print_attempts(info)


def _gpus(client: "Client", info: "Job") -> list[str]:
    """The GPUs of its last attempt, by their names where gpuyard knows these."""
    if not info.gpus:
        return []
    names = {gpu["uuid"]: gpu["name"] for gpu in client.gpus()}
    return [f"{names[gpu]} ({gpu})" if gpu in names else gpu for gpu in info.gpus]


def _print_attempts(info: "Job") -> None:
    if not info.attempts:
        return
    typer.echo()
    rows = [
        (
            a.number,
            a.state,
            a.node and a.node[-8:],
            ", ".join(a.gpus),
            clock(a.started_at),
            a.exit_code,
            a.signal,
            a.reason,
            money(a.cost),
        )
        for a in info.attempts
    ]
    print_table(
        (
            "ATTEMPT",
            "STATE",
            "NODE",
            "GPUS",
            "STARTED",
            "EXIT",
            "SIGNAL",
            "REASON",
            "COST",
        ),
        rows,
        empty="",
    )
    last = info.attempts[-1]
    limits = ", ".join(f"{name} by {how}" for name, how in last.limits.items())
    print_fields(
        {"limits": limits, "message": last.message, "resumed from": last.resumed_from}
    )


def logs(
    job: Reference,
    follow_: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job is over.")
    ] = False,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", min=0, help="Only the last so many.")
    ] = None,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Of this attempt; default: the last.")
    ] = None,
) -> None:
    """Print a job's output; with -f its exit code becomes this command's."""
    try:
        with connect(patient=follow_) as client:
            handle = client.job(job)
            if follow_ and attempt is None:
                sys.exit(follow(handle, lines=lines, interrupted=leave))
            for part in client.log_bytes(
                handle.id, lines=lines, follow=follow_, attempt=attempt
            ):
                sys.stdout.buffer.write(part)
                sys.stdout.buffer.flush()
    except GpuyardError as error:
        if not follow_:
            raise
        typer.echo(f"gpuyard: {error}", err=True)
        sys.exit(GPUYARD_FAULT)


def resume(
    job: EndedReference,
    checkpoint: Annotated[
        str | None,
        typer.Option("--from", help="Its id, file name or step; default: newest."),
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(help="End it after so long from now on, such as 2h.")
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus",
            "-g",
            help="How many GPUs from now on, or which: 2, A100:8.",
            autocompletion=suggest.gpu_wishes,
        ),
    ] = None,
    priority: Annotated[
        int | None, typer.Option(help="Its priority from now on, 1 to 5.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Do not follow it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Start a new attempt of an ended job from a checkpoint, and follow it; of an
    array, of each task that did not complete.
    """
    from gpuyard.client.sync_job import JobHandle

    changes = given(
        timeout_s=timeout,
        gpus=None if gpus is None else gpu_request(gpus, {}),
        priority=priority,
    )
    with connect(patient=not detach) as client:
        handle = job_or_array(client, job)
        if not isinstance(handle, JobHandle):
            if checkpoint is not None:
                fault = f"is that of one job, and {job!r} is an array"
                raise InvalidInputError.of("--from", fault, "name one of its tasks")
            sys.exit(
                resume_array(client, handle, changes, detach=detach, as_json=as_json)
            )
        info = handle.resume(checkpoint, **changes)
        if as_json:
            print_json(info)
        elif detach:
            typer.echo(info.id)
        else:
            from gpuyard.cli.typed_input import input_of

            sys.exit(follow(handle, typed=input_of(client, handle)))


def why(job: Reference, as_json: AsJson = False) -> None:
    """Say why a job is not running: what it waits for, what was rejected, what would
    help.
    """
    with connect() as client:
        answer = _why(client, job)
        if as_json:
            print_json(answer)
            return
        names = _names_of_jobs(client, json.dumps(answer))
    if answer.get("waiting"):
        typer.echo(f"{count(answer['waiting'], 'task')} of it wait; the first says:")
    typer.echo(_named(answer["summary"], names))
    if not answer["pending"]:
        return
    if answer.get("position"):
        typer.echo(f"Position in the queue: {answer['position']}")
    for verdict in answer.get("candidates", []):
        reasons = (
            "; ".join(
                [
                    *verdict["reasons"],
                    *([verdict["expects"]] if verdict["expects"] else []),
                ]
            )
            or "fits"
        )
        typer.echo(f"  {verdict['name'] or verdict['node']}: {reasons}")
    if answer.get("would_help"):
        typer.echo("What would help:")
        for hint in answer["would_help"]:
            typer.echo(f"  - {_named(hint, names)}")
    estimate = answer.get("estimate_s")
    basis = answer.get("estimate_basis") or ""
    typer.echo(
        "Estimate:"
        f" {'in ' + format_duration(estimate) if estimate is not None else 'unknown'}"
        + (f" ({basis})" if basis else "")
    )


def _why(client: "Client", reference: str) -> dict[str, Any]:
    """Why a job waits; of an array, why its first waiting task does."""
    from gpuyard.client import array_calls, calls

    try:
        return client.call(calls.why(reference))
    except IsArrayError:
        return client.call(array_calls.why(reference))


def _names_of_jobs(client: "Client", text: str) -> dict[str, str]:
    """The names of the first jobs whose ids stand in `text`, by id."""
    names: dict[str, str] = {}
    for job_id in sorted(set(_JOB_ID.findall(text)))[:_MOST_NAMED]:
        with suppress(NotFoundError):
            names[job_id] = client.job(job_id).info.name
    return names


def _named(text: str, names: Mapping[str, str]) -> str:
    """The text with names and short ids of jobs in place of their ids."""
    for job_id, name in names.items():
        text = text.replace(job_id, f"{name} ({short_id(job_id)})")
    return text


def events(
    job: Annotated[
        str | None, typer.Option(help="Only of this job.", autocompletion=suggest.jobs)
    ] = None,
    follow_: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as they come.")
    ] = False,
    after: Annotated[
        int | None,
        typer.Option(min=0, help="Only after this number; with -f, from now on."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Only since then, such as 2h or 2026-11-25.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            min=1,
            max=10_000,
            help="The newest so many; default: 20 on a terminal, else 1000.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List what happened, the newest last; with -f, what happens.

    With --json and -f, one JSON object a line.
    """
    from gpuyard.client import calls

    _refuse_together(after, since, limit, follow_=follow_)
    most = limit or (_ON_SCREEN if sys.stdout.isatty() and not as_json else _IN_A_PIPE)
    start = moment("--since", since) if since else None
    with connect(patient=follow_) as client:
        if not follow_:
            found = client.call(calls.events(after, most, job, start))
            if as_json:
                is_full = after is not None and len(found) == most
                print_page(found, str(found[-1]["seq"]) if is_full else None)
            for event in [] if as_json else found:
                typer.echo(_event_line(event))
            return
        for event in client.events(after=after, job=job):
            typer.echo(json.dumps(event) if as_json else _event_line(event))


def _refuse_together(
    after: int | None, since: str | None, limit: int | None, *, follow_: bool
) -> None:
    """InvalidInputError for options that have no effect together."""
    if after is not None and since is not None:
        raise InvalidInputError.of(
            "--since", "goes with no --after", "give one of them"
        )
    if follow_ and (since is not None or limit is not None):
        option = "--limit" if since is None else "--since"
        raise InvalidInputError.of(option, "goes with no --follow", "leave one out")


def _event_line(event: dict[str, Any]) -> str:
    data = {
        k: v
        for k, v in event["data"].items()
        if v not in (None, "", [], {}) and k != "attempt_id"
    }
    words = " ".join(f"{name}={value}" for name, value in data.items())
    seq = event["seq"] or ""
    job = short_id(event["job_id"] or "")
    return f"{seq:>6} {clock(event['at'])} {event['kind']:<22} {job:<8} {words}"
