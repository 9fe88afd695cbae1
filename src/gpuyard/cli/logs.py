"""`gpuyard logs`: what a job has printed."""

import sys
from typing import Annotated

import typer

from gpuyard.cli.arguments import Reference
from gpuyard.cli.follow import GPUYARD_FAULT, exit_code, follow, leave
from gpuyard.cli.log_filters import Filters, print_lines
from gpuyard.cli.session import connect
from gpuyard.domain.errors import GpuyardError


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
            handle = client.job(job)
            if filters:
                print_lines(client, handle.id, filters, follow=follow_)
                sys.exit(exit_code(handle.refresh()) if follow_ else 0)
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
