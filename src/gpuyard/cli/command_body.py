"""Turns the words of a command into the body of a job."""

import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import typer

from gpuyard.cli.foreign_jobs import is_batch_script
from gpuyard.cli.git_source import new_folder
from gpuyard.cli.interpreters import with_interpreter
from gpuyard.cli.job_files import at_home, load_spec, merge
from gpuyard.cli.notebooks import is_notebook, notebook_command, notebook_fields
from gpuyard.cli.options import pairs_of
from gpuyard.domain.errors import InvalidInputError


def command_body(
    command: Sequence[str],
    fields: dict[str, Any],
    env: Sequence[str],
    *,
    writes: bool = True,
) -> dict[str, Any]:
    """The body of a job that runs `command`: a program, a script or a template.

    `fields` are the job's others, `env` the variables as `--env` gives them. A template
    is written to a folder of its own, if `writes`.
    """
    from gpuyard import templates
    from gpuyard.client.bodies import current_folder, shell_environment

    base: dict[str, Any] = {"workdir": current_folder()}
    words = list(command)
    if (
        words[0] in templates.names()
        and not Path(words[0]).exists()
        and not shutil.which(words[0])
    ):
        base = _written(words[0]) if writes else _template_body(words[0])
        words = [*base["command"], *words[1:]]
    else:
        folder = Path(fields.get("workdir") or ".")
        if is_notebook(words[0]):
            fields = {**fields, **notebook_fields(words[0], folder, fields)}
            words = notebook_command(words)
        words = with_interpreter(words, folder)
    name = fields.get("name", base.get("name") or _name_of(words))
    environment = (
        shell_environment()
        | base.get("environment", {})
        | pairs_of("env", env, os.environ)
    )
    merged = merge(base, fields)
    return {**merged, "name": name, "command": words, "environment": environment}


def folder_body(
    folder: Path, fields: dict[str, Any], env: Sequence[str]
) -> dict[str, Any]:
    """The body of the job that the job file of a folder describes, with more fields and
    variables. InvalidInputError without one.
    """
    path = folder / "job.toml"
    if not path.is_file():
        fault = f"is missing, and {folder} has no job.toml that says it"
        remedy = "say what to run, such as train.py"
        raise InvalidInputError.of("COMMAND", fault, remedy)
    base = at_home(load_spec(path), folder)
    environment = base.get("environment", {}) | pairs_of("env", env, os.environ)
    return {**merge(base, fields), "environment": environment}


def is_job_file(word: str) -> bool:
    """Whether a word names a job file (`-`: standard input) and not a program. A script
    with `#SBATCH` lines is a job file.
    """
    if word == "-" or word.endswith((".toml", ".yaml", ".yml", ".json")):
        return True
    path = Path(word)
    if path.is_file() and is_batch_script(path):
        return True
    is_program = os.access(path, os.X_OK) or shutil.which(word) is not None
    return not path.suffix and path.is_file() and not is_program


def read_input(path: Path) -> str:
    """What the command is to read: a file's text, or standard input's for `-`."""
    from gpuyard.domain.spec_values import MAX_SPEC_BYTES

    most = f"{MAX_SPEC_BYTES / 1e6:.0f} MB"
    try:
        with (
            nullcontext(sys.stdin.buffer) if str(path) == "-" else path.open("rb")
        ) as file:
            content = file.read(MAX_SPEC_BYTES + 1)
        if len(content) > MAX_SPEC_BYTES:
            remedy = "let the program read a large input from a file"
            raise InvalidInputError.of(
                "--stdin", f"{path} is more than the {most} a job may have", remedy
            )
        return content.decode()
    except OSError as error:
        raise InvalidInputError.of(
            "--stdin", f"{path} cannot be read: {error.strerror}", "check the path"
        ) from None
    except UnicodeDecodeError:
        fault = f"{path} is not UTF-8 text"
        raise InvalidInputError.of(
            "--stdin", fault, "let the program read it from a file"
        ) from None


def _template_body(name: str) -> dict[str, Any]:
    """The job file of a template."""
    from gpuyard import templates

    return load_spec(templates.job_file(name))


def _written(name: str) -> dict[str, Any]:
    """A template run by name: written out anew into a folder under the home, and its
    own job file.
    """
    from gpuyard import templates

    folder = new_folder(name)
    templates.write(name, folder)
    typer.echo(f"gpuyard: {name} written to {folder}", err=True)
    return {**load_spec(folder / "job.toml"), "workdir": str(folder)}


def _name_of(words: Sequence[str]) -> str:
    """The script's or the program's name."""
    scripts = [word for word in words if word.endswith((".py", ".sh", ".ipynb"))]
    name = Path(scripts[0] if scripts else words[0]).name
    return "".join(c for c in name if c.isprintable())[:60] or "job"
