"""`gpuyard jobs`."""

import re
from typing import Annotated

import typer

from gpuyard.cli import suggest
from gpuyard.cli.arguments import AsJson
from gpuyard.cli.listing import list_jobs
from gpuyard.cli.session import connect

# So that one can list the jobs of a schedule that was deleted.
_WHOLE_ID = re.compile(r"schedule_[0-9a-f]{32}")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(jobs)


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
    labels = list(label or ())
    if schedule:
        labels.append(_label_of(schedule))
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
