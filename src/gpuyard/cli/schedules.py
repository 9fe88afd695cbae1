"""`gpuyard schedules` and `gpuyard schedule`: jobs that are submitted again and again.
`gpuyard run --schedule` adds one.
"""

import shlex
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, cast
from zoneinfo import ZoneInfo

import typer

from gpuyard.cli.arguments import AsJson
from gpuyard.cli.code import with_code
from gpuyard.cli.options import given
from gpuyard.cli.output import (
    ago,
    clock,
    print_fields,
    print_json,
    print_page,
    print_table,
    short_id,
)
from gpuyard.cli.session import connect
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.units import format_duration

if TYPE_CHECKING:
    from gpuyard.client.sync import Client
    from gpuyard.domain.schedules import Schedule

Reference = Annotated[
    str, typer.Argument(metavar="SCHEDULE", help="An id, the end of one, or a name.")
]
CronOption = Annotated[
    str | None, typer.Option(help="Other times, such as '0 3 * * *' or @daily.")
]
TimeZoneOption = Annotated[
    str | None,
    typer.Option(help="Their time zone, such as Europe/Berlin; default: this one."),
]
OverlapOption = Annotated[
    str | None,
    typer.Option(
        help="If its last job has not ended: skip (default), queue or cancel-previous."
    ),
]
StartingDeadlineOption = Annotated[
    str | None,
    typer.Option(
        help="Make up for a time that passed without a server within so long;"
        " default 1h."
    ),
]
# The key of a job file, and the fields of its table.
KEY = "schedule"
_FIELDS = ("cron", "timezone", "overlap", "starting_deadline_s", "deadline_s")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("schedules")(listing)
    schedule = typer.Typer(
        help="Show, pause, change and delete schedules, which submit jobs again and"
        " again.",
        no_args_is_help=True,
    )
    for command in (show, pause, resume, update, delete):
        schedule.command()(command)
    schedule.command("run-now")(run_now)
    schedule.command("list", hidden=True)(listing)
    app.add_typer(schedule, name="schedule")


# --- add one ---


def schedule_of(body: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The job and the fields of the schedule of a job file that has the key
    `schedule`; None without it.
    """
    if not isinstance(body, Mapping) or KEY not in body:
        return None
    job = dict(cast("Mapping[str, Any]", body))
    fields = job.pop(KEY)
    if isinstance(fields, str):
        fields = {"cron": fields}
    if not isinstance(fields, Mapping) or "cron" not in fields:
        raise InvalidInputError.of(
            KEY,
            "says no times",
            'write schedule = "0 3 * * *", or a table [schedule] with cron',
        )
    given_fields = dict(cast("Mapping[str, Any]", fields))
    unknown = sorted(given_fields.keys() - set(_FIELDS))
    if unknown:
        known = ", ".join(_FIELDS)
        raise InvalidInputError.of(
            f"{KEY}.{unknown[0]}", "is not a field", f"known here: {known}"
        )
    return job, given_fields


def add(client: "Client", job: dict[str, Any], fields: Mapping[str, Any]) -> "Schedule":
    """Add a schedule of the job, which keeps the code that its folder has now; tell
    people what they should know.
    """
    from gpuyard.client import schedule_calls

    options = dict(fields)
    cron = options.pop("cron")
    if "idempotency_key" in job:
        options["idempotency_key"] = job.pop("idempotency_key")
    (with_its_code,), notes = with_code(client, [job])
    (filled_in,) = client.carrying([with_its_code])
    schedule = client.call(schedule_calls.create(filled_in, cron, options))
    for note in (*notes, *schedule.warnings):
        typer.echo(f"gpuyard: note: {note}", err=True)
    next_time = _in_zone(schedule.next_at, schedule.timezone)
    typer.echo(f"gpuyard: note: it runs next at {next_time}", err=True)
    return schedule


# --- see them ---


def listing(as_json: AsJson = False) -> None:
    """List schedules: their times, the next one, and how the last job went."""
    with connect() as client:
        found = client.schedules()
    if as_json:
        print_page(found)
        return
    rows = [
        (
            short_id(one.id),
            one.name,
            one.state,
            one.cron,
            one.timezone,
            clock(one.next_at) if one.next_at else None,
            _last(one),
            one.problem,
        )
        for one in found
    ]
    columns = (
        "SCHEDULE",
        "NAME",
        "STATE",
        "CRON",
        "TIME ZONE",
        "NEXT",
        "LAST JOB",
        "PROBLEM",
    )
    print_table(
        columns,
        rows,
        empty="No schedules. Add one with `gpuyard run --schedule '0 3 * * *' --"
        " COMMAND`.",
    )


def _last(schedule: "Schedule") -> str:
    """Its last job, how that went, and when it was submitted."""
    if not schedule.last_job_id:
        return ""
    state = schedule.last_job_state or "removed"
    return f"{short_id(schedule.last_job_id)} {state} {ago(schedule.last_at)}"


def show(schedule: Reference, as_json: AsJson = False) -> None:
    """Show everything about a schedule."""
    with connect() as client:
        found = client.schedule(schedule)
    if as_json:
        print_json(found)
        return
    print_fields(
        {
            "schedule": found.id,
            "name": found.name,
            "state": found.state,
            "cron": found.cron,
            "time zone": found.timezone,
            "next": _in_zone(found.next_at, found.timezone),
            "last job": _last(found),
            "problem": found.problem,
            "overlap": found.overlap,
            "starting deadline": format_duration(found.starting_deadline_s),
            "deadline": _after_its_time(found.deadline_s),
            "command": shlex.join(found.job.get("command", [])),
            "workdir": found.job.get("workdir"),
            "code": _code(found.job),
            "added": clock(found.created_at),
            "notes": "; ".join(found.warnings),
            "its jobs": f"gpuyard jobs --schedule {short_id(found.id)}",
        }
    )


def _after_its_time(deadline_s: float | None) -> str:
    """When a job should have ended; empty if nobody has said it."""
    if deadline_s is None:
        return ""
    return f"{format_duration(deadline_s)} after its time"


def _code(job: Mapping[str, Any]) -> str:
    digest: str | None = job.get("submitted_code")
    if digest is None:
        return "as it is when a job starts"
    return f"as it was when the schedule was added (sha256 {digest[:12]})"


def _in_zone(at: float | None, timezone: str) -> str:
    """A time in the zone of its schedule, or nothing."""
    if at is None:
        return ""
    moment = datetime.fromtimestamp(at, ZoneInfo(timezone))
    return f"{moment:%Y-%m-%d %H:%M} {timezone}"


# --- change them ---


def pause(schedule: Reference, as_json: AsJson = False) -> None:
    """Let it submit nothing until `gpuyard schedule resume`. Its jobs go on."""
    _change(schedule, {"state": "paused"}, as_json=as_json)


def resume(schedule: Reference, as_json: AsJson = False) -> None:
    """Let a paused schedule go on with its next time; those that passed do not
    count.
    """
    _change(schedule, {"state": "active"}, as_json=as_json)


def update(
    schedule: Reference,
    cron: CronOption = None,
    timezone: TimeZoneOption = None,
    overlap: OverlapOption = None,
    starting_deadline: StartingDeadlineOption = None,
    deadline: Annotated[
        str | None,
        typer.Option(
            help="How long after its time each job should have ended, such as 8h;"
            " none for no deadline."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change when it submits jobs. To change the job, delete the schedule and add
    another.
    """
    changes = given(
        cron=cron,
        timezone=timezone,
        overlap=overlap,
        starting_deadline_s=starting_deadline,
    )
    if deadline is not None:
        changes["deadline_s"] = None if deadline == "none" else deadline
    if not changes:
        raise InvalidInputError.of(
            "update",
            "changes nothing",
            "give --cron, --timezone, --overlap, --starting-deadline or --deadline",
        )
    _change(schedule, changes, as_json=as_json)


def _change(reference: str, changes: Mapping[str, Any], *, as_json: bool) -> None:
    with connect() as client:
        found = client.change_schedule(reference, **changes)
    if as_json:
        print_json(found)
    elif found.next_at is None:
        typer.echo(f"{found.id} is paused")
    else:
        next_time = _in_zone(found.next_at, found.timezone)
        typer.echo(f"{found.id} is active; next at {next_time}")


def delete(schedule: Reference, as_json: AsJson = False) -> None:
    """Delete a schedule. Its jobs go on."""
    with connect() as client:
        found = client.delete_schedule(schedule)
    if as_json:
        print_json(found)
    else:
        typer.echo(f"{found.id} is deleted")


def run_now(schedule: Reference, as_json: AsJson = False) -> None:
    """Submit its job now, also while it is paused, and print the job's id."""
    with connect() as client:
        job = client.run_schedule(schedule)
    if as_json:
        print_json(job)
        return
    for warning in job.warnings:
        typer.echo(f"gpuyard: note: {warning}", err=True)
    typer.echo(job.id)
