"""`gpuyard templates` and `gpuyard new`: training programs and packages to start
from.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from gpuyard.cli import suggest
from gpuyard.cli.arguments import AsJson
from gpuyard.cli.git_source import (
    GitSource,
    check_out,
    names_repository,
    notes_of,
)
from gpuyard.cli.output import print_page, print_table
from gpuyard.domain.errors import InvalidInputError, NotFoundError, RefusedError


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(templates)
    app.command()(new)


def templates(as_json: AsJson = False) -> None:
    """List the templates."""
    from gpuyard import templates as catalogue

    found = [
        {"name": name, "description": catalogue.describe(name)}
        for name in catalogue.all_names()
    ]
    if as_json:
        print_page(found)
        return
    print_table(
        ("TEMPLATE", "WHAT IT IS"),
        [(t["name"], t["description"]) for t in found],
        empty="No templates.",
    )


def new(
    template: Annotated[
        str,
        typer.Argument(
            help="See `gpuyard templates`; or URL[@REF] of a git repository.",
            autocompletion=suggest.templates,
        ),
    ],
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder that is new or empty.")
    ],
    name: Annotated[
        str | None,
        typer.Option(help="What a new provider is called; default: as the folder."),
    ] = None,
) -> None:
    """Write a template, or the files of a git repository, to a folder of your own."""
    from gpuyard import templates as catalogue

    if names_repository(template):
        _new_from_git(template, directory)
        return
    try:
        written = catalogue.write(template, directory, name)
    except catalogue.UnknownTemplateError as error:
        raise NotFoundError(str(error), "`gpuyard templates` lists them.") from None
    except catalogue.BadNameError as error:
        raise InvalidInputError.of("name", error.fault, error.remedy) from None
    except FileExistsError as error:
        raise RefusedError(str(error), "Choose a new folder.") from None
    for path in written:
        typer.echo(path)
    if catalogue.is_package(template):
        typer.echo(
            f"Go on with {directory / 'README.md'}; install it with: pip install"
            f" --editable {directory}"
        )
    else:
        typer.echo(f"Run it with: cd {directory} && gpuyard submit job.toml")


def _new_from_git(text: str, directory: Path) -> None:
    """Write the files of a commit to a folder, without its history."""
    if directory.exists() and (directory.is_file() or any(directory.iterdir())):
        raise RefusedError(f"{directory} is not empty.", "Choose a new folder.")
    source = GitSource.parse(text)
    with tempfile.TemporaryDirectory(prefix="gpuyard-") as temporary:
        folder = Path(temporary) / "commit"
        commit = check_out(source, folder)
        notes = list(notes_of(folder))
        shutil.rmtree(folder / ".git")
        shutil.copytree(folder, directory, symlinks=True, dirs_exist_ok=True)
    for note in notes:
        typer.echo(f"gpuyard: note: {note}", err=True)
    typer.echo(f"{source.label(commit)} is in {directory}")
