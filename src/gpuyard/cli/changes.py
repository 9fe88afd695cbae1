"""`gpuyard hold, release, update`: change jobs that were submitted."""

from typing import Annotated

import typer

from gpuyard.cli.arguments import AsJson, Reference
from gpuyard.cli.groups import FEW, References, read_references
from gpuyard.cli.options import given
from gpuyard.cli.output import print_json, print_page
from gpuyard.cli.session import connect
from gpuyard.domain.errors import InvalidInputError


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (hold, release, update):
        app.command()(command)


def hold(jobs: References = None, as_json: AsJson = False) -> None:
    """Hold queued jobs: none starts before `gpuyard release`."""
    _set_held(jobs, "hold", "is held", as_json=as_json)


def release(jobs: References = None, as_json: AsJson = False) -> None:
    """Release jobs that are held."""
    _set_held(jobs, "release", "is released", as_json=as_json)


def _set_held(
    words: list[str] | None, action: str, told: str, *, as_json: bool
) -> None:
    from gpuyard.client import job_calls

    references = read_references(words or [])
    if not references:
        raise InvalidInputError.of("JOB…", "is missing", f"name the jobs to {action}")
    with connect() as client:
        done = client.call(job_calls.set_held(references, action))
    if as_json:
        print_page(done)
        return
    if len(done) > FEW:
        typer.echo(f"{len(done)} jobs: each {told}")
    for job in done if len(done) <= FEW else ():
        typer.echo(f"{job['id']} {told}")


def update(
    job: Reference,
    name: Annotated[str | None, typer.Option(help="Another name.")] = None,
    priority: Annotated[
        int | None, typer.Option(help="1 to 5; 5 is urgent, 3 the default.")
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(help="Its time limit, such as 2h; only before it starts."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change a job that was submitted. `gpuyard resume` changes one that is over."""
    changes = given(name=name, priority=priority, timeout_s=timeout)
    if not changes:
        raise InvalidInputError.of(
            "update", "changes nothing", "give --name, --priority or --timeout"
        )
    with connect() as client:
        info = client.job(job).update(**changes)
    if as_json:
        print_json(info)
    else:
        typer.echo(f"{info.id} is updated")
