"""`gpuyard logs`: what a job has printed."""

import sys
from typing import Annotated

import typer

from gpuyard.cli.arguments import Reference
from gpuyard.cli.follow import GPUYARD_FAULT, follow, leave
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
