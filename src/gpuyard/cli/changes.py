"""`gpuyard hold, release, update`: change jobs that were submitted."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gpuyard.cli.arguments import AsJson, Reference
from gpuyard.cli.arrays import job_or_array
from gpuyard.cli.groups import FEW, References, read_references
from gpuyard.cli.options import deadline_of, given
from gpuyard.cli.output import print_json, print_page
from gpuyard.cli.session import connect
from gpuyard.domain.errors import InvalidInputError, quoted

_ONLY_OF_JOBS = {
    "name": "--name",
    "timeout_s": "--timeout",
}
_ONLY_OF_ARRAYS = {"at_most": "--limit"}


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
    deadline: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="8h from now, or '2026-12-01 18:00'; or none."
        ),
    ] = None,
    limit: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Of an array: how many tasks may run at once; or none."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change a job or an array that was submitted. `gpuyard resume` changes a job that
    is over.
    """
    from gpuyard.client.sync_job import JobHandle

    changes = given(name=name, priority=priority, timeout_s=timeout)
    if deadline is not None:
        changes["deadline"] = None if deadline == "none" else deadline_of(deadline)
    if limit is not None:
        changes["at_most"] = _at_most(limit)
    if not changes:
        raise InvalidInputError.of(
            "update",
            "changes nothing",
            "give --name, --priority, --timeout, --deadline or --limit",
        )
    with connect() as client:
        found = job_or_array(client, job)
        if isinstance(found, JobHandle):
            _refuse(changes, _ONLY_OF_ARRAYS, f"that of an array, and {job!r} is a job")
        else:
            _refuse(changes, _ONLY_OF_JOBS, f"that of a job, and {job!r} is an array")
        info = found.update(**changes)
    if as_json:
        print_json(info)
    else:
        typer.echo(f"{info.id} is updated")


def _at_most(text: str) -> int | None:
    """How many tasks may run at once; None for any number. InvalidInputError."""
    if text == "none":
        return None
    if not (text.isascii() and text.isdecimal()):
        fault = f"is {quoted(text)}, which is not a number of tasks"
        raise InvalidInputError.of("--limit", fault, "give 1 or more, or none")
    return int(text)


def _refuse(changes: Mapping[str, Any], options: Mapping[str, str], what: str) -> None:
    for field, option in options.items():
        if field in changes:
            raise InvalidInputError.of(option, f"is {what}", "leave it out")
