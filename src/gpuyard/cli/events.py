"""`gpuyard events`: what happened, and what happens now."""

import json
import sys
from typing import Annotated, Any

import typer

from gpuyard.cli import suggest
from gpuyard.cli.arguments import AsJson
from gpuyard.cli.moments import moment
from gpuyard.cli.output import clock, print_page, short_id
from gpuyard.cli.session import connect
from gpuyard.domain.errors import InvalidInputError

# How many events are listed without `--limit`.
_ON_SCREEN = 20
_IN_A_PIPE = 1000


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(events)


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
    start = moment("--since", since) if since else None
    with connect(patient=follow_) as client:
        if follow_:
            for event in client.events(after=after, job=job):
                typer.echo(json.dumps(event) if as_json else _event_line(event))
            return
        is_for_a_person = sys.stdout.isatty() and not as_json
        most = limit or (_ON_SCREEN if is_for_a_person else _IN_A_PIPE)
        found = client.call(calls.events(after, most, job, start))
    if as_json:
        is_full = after is not None and len(found) == most
        print_page(found, str(found[-1]["seq"]) if is_full else None)
        return
    for event in found:
        typer.echo(_event_line(event))


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
    """One line; the fields of its data that are empty are left out."""
    words = " ".join(
        f"{name}={value}"
        for name, value in event["data"].items()
        if value not in (None, "", [], {}) and name != "attempt_id"
    )
    seq = event["seq"] or ""
    job = short_id(event["job_id"] or "")
    return f"{seq:>6} {clock(event['at'])} {event['kind']:<22} {job:<8} {words}"
