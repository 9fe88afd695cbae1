"""`gpuyard resume`: a new attempt of an ended job."""

import sys
from typing import Annotated

import typer

from gpuyard.cli import suggest
from gpuyard.cli.arguments import AsJson, EndedReference
from gpuyard.cli.arrays import job_or_array, resume_array
from gpuyard.cli.follow import follow
from gpuyard.cli.options import DeadlineOption, deadline_of, given, gpu_request
from gpuyard.cli.output import print_json
from gpuyard.cli.session import connect
from gpuyard.domain.errors import InvalidInputError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(resume)


def resume(
    job: EndedReference,
    checkpoint: Annotated[
        str | None,
        typer.Option("--from", help="Its id, file name or step; default: newest."),
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(help="End it after so long from now on, such as 2h.")
    ] = None,
    deadline: DeadlineOption = None,
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
        deadline=deadline_of(deadline),
        gpus=None if gpus is None else gpu_request(gpus, {}),
        priority=priority,
    )
    with connect(patient=not detach) as client:
        found = job_or_array(client, job)
        if isinstance(found, JobHandle):
            info = found.resume(checkpoint, **changes)
            if as_json:
                print_json(info)
            elif detach:
                typer.echo(info.id)
            else:
                from gpuyard.cli.typed_input import input_of

                sys.exit(follow(found, typed=input_of(client, found)))
            return
        if checkpoint is not None:
            fault = f"is that of one job, and {job!r} is an array"
            raise InvalidInputError.of("--from", fault, "name one of its tasks")
        sys.exit(resume_array(client, found, changes, detach=detach, as_json=as_json))
