"""`gpuyard submit`: queue the jobs of job files, and add their schedules.

With a program in place of files it is `run --detach`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuyard.cli.code import with_code
from gpuyard.cli.command_body import is_job_file
from gpuyard.cli.foreign_jobs import is_batch_script
from gpuyard.cli.job_files import FileJob, naming, read_jobs
from gpuyard.cli.output import print_page
from gpuyard.cli.schedules import add, schedule_of
from gpuyard.cli.session import connect
from gpuyard.domain.errors import InvalidInputError

_OWN_OPTIONS = ("--json", "--help", "-h", "--")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(submit)


def is_program(words: Sequence[str]) -> bool:
    """Whether the words of `submit` name a program and not job files."""
    first = next((word for word in words if word not in _OWN_OPTIONS), None)
    return first is not None and not is_job_file(first)


def submit(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE…|COMMAND…",
            help="Jobs as .toml, .yaml or .json; `-` reads one from a pipe. A batch"
            " script of Slurm with its arguments, or a task of SkyPilot. Or a program,"
            " with the options of `gpuyard run` before it.",
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the jobs as JSON.")
    ] = False,
) -> None:
    """Queue the jobs of these files, all or none, and print their ids.

    A file may hold several: a list, or tables `[[jobs]]` with what they share above.
    A job with the key `schedule` is submitted again and again; see `gpuyard schedule`.
    One with the key `array` is an array, as with `gpuyard run --array`.
    `gpuyard submit COMMAND` is `gpuyard run --detach COMMAND`.
    """
    found = _jobs_of(files)
    for note in (note for job in found for note in job.notes):
        typer.echo(f"gpuyard: note: {note}", err=True)
    scheduled = [pair for job in found if (pair := schedule_of(job.body))]
    if scheduled:
        _add_schedules(scheduled, as_json=as_json, are_all=len(scheduled) == len(found))
        return
    if any(_is_array(job.body) for job in found):
        _submit_arrays(found, as_json=as_json)
        return
    with connect() as client, naming(found):
        filled_in, notes = with_code(client, [job.body for job in found])
        jobs = client.submit(filled_in)
        for note in notes:
            typer.echo(f"gpuyard: note: {note}", err=True)
    if as_json:
        print_page(jobs)
        return
    for job in jobs:
        for warning in job.warnings:
            typer.echo(f"gpuyard: note: {warning}", err=True)
        typer.echo(job.id)


def _jobs_of(words: Sequence[str]) -> list[FileJob]:
    """The jobs of these files; what stands behind a batch script are its arguments, as
    with `sbatch`. InvalidInputError.
    """
    (first, *others) = words
    jobs = read_jobs(Path(first), others)
    if not jobs[:1] or not jobs[0].takes_arguments:
        return jobs + [job for word in others for job in read_jobs(Path(word))]
    for word in others:
        if is_batch_script(Path(word)):
            fault = "is a batch script behind another, whose argument it would be"
            raise InvalidInputError.of(word, fault, "submit them in two commands")
    return jobs


def _is_array(body: Any) -> bool:
    return isinstance(body, Mapping) and "array" in body


def _submit_arrays(found: Sequence[FileJob], *, as_json: bool) -> None:
    """Submit these arrays one by one, and print their ids."""
    if not all(_is_array(job.body) for job in found):
        raise InvalidInputError.of(
            "array",
            "is given for some of the jobs only",
            "submit these jobs and the others in two commands",
        )
    with connect() as client:
        (filled_in, notes) = with_code(client, [job.body for job in found])
        arrays = [client.submit_array(body).info for body in filled_in]
    for note in (*notes, *(note for array in arrays for note in array.warnings)):
        typer.echo(f"gpuyard: note: {note}", err=True)
    if as_json:
        print_page(arrays)
        return
    for array in arrays:
        typer.echo(array.id)


def _add_schedules(
    scheduled: Sequence[tuple[dict[str, Any], dict[str, Any]]],
    *,
    as_json: bool,
    are_all: bool,
) -> None:
    """Add these schedules one by one, and print their ids."""
    if not are_all:
        raise InvalidInputError.of(
            "schedule",
            "is given for some of the jobs only",
            "submit these jobs and the others in two commands",
        )
    with connect() as client:
        added = [add(client, job, fields) for job, fields in scheduled]
    if as_json:
        print_page(added)
        return
    for schedule in added:
        typer.echo(schedule.id)
