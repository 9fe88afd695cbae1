"""`gpuyard logs`: what a job has printed."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.arguments import Reference
from gpuyard.cli.follow import GPUYARD_FAULT, exit_code, follow, leave
from gpuyard.cli.log_filters import Filters, print_lines
from gpuyard.cli.session import connect
from gpuyard.domain.errors import GpuyardError

if TYPE_CHECKING:
    from gpuyard.client.sync import Client
    from gpuyard.client.sync_job import JobHandle


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(logs)


def logs(
    job: Reference,
    follow_: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job is over.")
    ] = False,
    lines: Annotated[
        int | None,
        typer.Option("--lines", "--tail", "-n", min=0, help="Only the last so many."),
    ] = None,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Of this attempt; default: the last.")
    ] = None,
    search: Annotated[
        str | None, typer.Option(help="Only lines that contain this text.")
    ] = None,
    regex: Annotated[
        str | None,
        typer.Option("--regex", "-E", help="Only lines with this (RE2)."),
    ] = None,
    ignore_case: Annotated[
        bool, typer.Option("--ignore-case", "-i", help="For --search and --regex.")
    ] = False,
    level: Annotated[
        str | None,
        typer.Option(
            help="Only lines of at least this level: debug, info, warning, error or"
            " critical. A traceback is an error."
        ),
    ] = None,
    section: Annotated[
        str | None,
        typer.Option(help="Only lines of setup, epoch:3, evaluation or traceback."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Only what came since, such as 10m or '2026-11-25 14:30'."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Only what came until then.")
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="A JSON object a line: time, level, section, text …"
        ),
    ] = False,
) -> None:
    """Print a job's output, or only the lines that meet all conditions.

    With -f, the exit code of the job becomes this command's.
    """
    filters = Filters(
        search=search,
        regex=regex,
        ignore_case=ignore_case,
        level=level,
        section=section,
        since=since,
        until=until,
        tail=lines,
        attempt=attempt,
        as_json=as_json,
    )
    try:
        with connect(patient=follow_) as client:
            code = _print(client, client.job(job), filters, follow_=follow_)
    except GpuyardError as error:
        if not follow_:
            raise
        typer.echo(f"gpuyard: {error}", err=True)
        code = GPUYARD_FAULT
    sys.exit(code)


def _print(
    client: "Client", job: "JobHandle", filters: Filters, *, follow_: bool
) -> int:
    """Print what is asked for; the exit code."""
    if filters:
        print_lines(client, job.id, filters, follow=follow_)
        return exit_code(job.refresh()) if follow_ else 0
    if follow_ and filters.attempt is None:
        return follow(job, lines=filters.tail, interrupted=leave)
    output = client.log_bytes(
        job.id, lines=filters.tail, follow=follow_, attempt=filters.attempt
    )
    for part in output:
        sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
    return 0
