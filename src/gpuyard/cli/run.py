"""`gpuyard run`: say what to run and what it needs; follow it to its end.

The options are in `run_options.py`.
"""

import inspect
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gpuyard.cli.arrays import tell_submitted
from gpuyard.cli.code import with_code
from gpuyard.cli.command_body import command_body, folder_body, read_input
from gpuyard.cli.follow import GPUYARD_FAULT, follow
from gpuyard.cli.git_source import (
    GitSource,
    check_out,
    inside,
    new_folder,
    notes_of,
)
from gpuyard.cli.notices import with_usual
from gpuyard.cli.output import print_json, short_id
from gpuyard.cli.recommended import apply, ask, may_be_recommended
from gpuyard.cli.run_fields import job_fields, schedule_fields
from gpuyard.cli.run_options import RunOptions
from gpuyard.cli.schedules import add
from gpuyard.cli.session import connect
from gpuyard.domain.errors import GpuyardError

if TYPE_CHECKING:
    from gpuyard.client.sync import Client
    from gpuyard.client.sync_job import JobHandle
    from gpuyard.config.settings import DefaultSettings

# Somebody who has one of these has an environment already.
_ACTIVE = frozenset({"VIRTUAL_ENV", "CONDA_PREFIX"})
# Somebody who writes one of these behind the program probably means gpuyard.
_OFTEN_MISPLACED = {
    "--gpus",
    "-g",
    "--gpu-memory",
    "--gpu-class",
    "--cpus",
    "--memory",
    "--tier",
    "--timeout",
    "--nodes",
    "--image",
    "--detach",
    "-d",
    "--interactive",
}


def register(app: typer.Typer) -> None:
    """Add the command."""

    def command(**values: Any) -> None:
        run(RunOptions(**values))

    # Typer makes the options of a command from the signature of its function.
    signature = inspect.signature(RunOptions)
    command.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    settings = {"ignore_unknown_options": False, "allow_interspersed_args": False}
    app.command("run", help=run.__doc__, context_settings=settings)(command)


def run(options: RunOptions) -> None:
    """Run COMMAND on a GPU that fits and follow it; its exit code becomes this
    command's.
    """
    words = options.words
    fields = job_fields(options)
    _note_misplaced(words)
    times = schedule_fields(options)
    try:
        code = _run(options, fields, times)
    except GpuyardError as error:
        typer.echo(f"gpuyard: {error}", err=True)
        # Not a code that could be taken for the job's.
        code = GPUYARD_FAULT if options.follows else error.exit_code
    sys.exit(code)


def _note_misplaced(command: Sequence[str]) -> None:
    """An option of ours behind the program is the program's; say so, because it is
    rarely meant.
    """
    behind = [word for word in command[1:] if word.split("=")[0] in _OFTEN_MISPLACED]
    if behind and "--" not in sys.argv:
        typer.echo(
            f"gpuyard: note: {behind[0]} after {command[0]} goes to {command[0]}; to"
            f" say it to gpuyard write `gpuyard run {behind[0]} … {command[0]}`, and --"
            f" before {command[0]} if you mean it",
            err=True,
        )


def _run(options: RunOptions, fields: dict[str, Any], times: dict[str, Any]) -> int:
    """Submit it once, as an array, or at these `times`; returns the exit code."""
    if options.stdin is not None:
        fields["stdin"] = read_input(options.stdin)
    body = with_usual(_body(options, fields))
    if "packages" not in body and "image" not in body:
        body |= _packages_beside(body)
    with connect(patient=not options.detach) as client:
        body = _with_needs(client, body, options)
        if times:
            return _run_at(client, body, times, options)
        (filled_in,), notes = with_code(client, [body])
        if "array" in filled_in:
            array = client.submit_array(filled_in)
            return tell_submitted(
                client, array, notes, detach=options.detach, as_json=options.as_json
            )
        return _run_once(client, filled_in, notes, options)


def _body(options: RunOptions, fields: dict[str, Any]) -> dict[str, Any]:
    """The body of the job: here, or in a commit of a git repository."""
    env = [*_of_seed(options.seed), *(options.env or [])]
    if options.git is None:
        return command_body(options.words, fields, env)
    source = GitSource.parse(options.git)
    top = new_folder(source.name)
    commit = check_out(source, top)
    typer.echo(f"gpuyard: {source.label(commit)} is in {top}", err=True)
    for note in notes_of(top):
        typer.echo(f"gpuyard: note: {note}", err=True)
    folder = inside(top, options.workdir)
    labels = {"git": source.label(commit), **fields.get("labels", {})}
    fields = {**fields, "workdir": str(folder), "labels": labels}
    if options.words:
        return command_body(options.words, fields, env)
    return folder_body(folder, fields, env)


def _of_seed(seed: int | None) -> list[str]:
    """The variables that tell a program its seed."""
    if seed is None:
        return []
    return [f"GPUYARD_SEED={seed}", f"PYTHONHASHSEED={seed}"]


def _packages_beside(body: dict[str, Any]) -> dict[str, Any]:
    """What becomes of packages that stand beside a program which seems to need them: it
    gets them if the settings say so; else a line says that it does not.
    """
    from gpuyard.client.package_files import likely_file

    is_python = re.fullmatch(r"python[\d.]*", body["command"][0])
    if not is_python or os.environ.keys() & _ACTIVE:
        return {}
    file = likely_file(Path(body["workdir"]))
    if file is None:
        return {}
    if _defaults().packages:
        return {"packages": str(file)}
    typer.echo(
        f"gpuyard: note: the packages of {file.name} are not installed for this job;"
        " --packages auto does that",
        err=True,
    )
    return {}


def _defaults() -> "DefaultSettings":
    """What the settings say of jobs that do not say it themselves."""
    from gpuyard.config.paths import Home
    from gpuyard.config.settings import load_settings

    return load_settings(Home.find()).defaults


def _with_needs(
    client: "Client", body: dict[str, Any], options: RunOptions
) -> dict[str, Any]:
    """The job with what its program needs, if nobody has said that."""
    from gpuyard.templates import names

    is_template = bool(options.words) and options.words[0] in names()
    if is_template or not may_be_recommended(body):
        return body
    defaults = _defaults()
    if not defaults.recommend:
        return body
    return apply(client, body, defaults.confirm_cost, sure=options.yes, confirm=ask)


def _run_at(
    client: "Client", body: dict[str, Any], times: dict[str, Any], options: RunOptions
) -> int:
    """Add a schedule."""
    schedule = add(client, body, times)
    if options.as_json:
        print_json(schedule)
    else:
        typer.echo(schedule.id)
    return 0


def _run_once(
    client: "Client", body: dict[str, Any], notes: Sequence[str], options: RunOptions
) -> int:
    """Submit one job, and follow it unless the options say otherwise."""
    job = client.run(body)
    _tell_notes(job, notes)
    if options.as_json:
        print_json(job.info)
        return 0
    if options.detach:
        typer.echo(job.id)
        return 0
    typed = None
    if body.get("interactive"):
        from gpuyard.cli.typed_input import JobInput

        typed = JobInput(client, job, empty_ends=True)
    return follow(job, typed=typed)


def _tell_notes(job: "JobHandle", notes: Sequence[str]) -> None:
    """Tell what a person should know of the job that was submitted."""
    all_notes = list(notes)
    if job.info.held:
        all_notes.append(f"it is held until `gpuyard release {short_id(job.id)}`")
    all_notes += job.info.warnings
    for note in all_notes:
        typer.echo(f"gpuyard: note: {note}", err=True)
