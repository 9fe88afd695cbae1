"""`gpuyard checkpoints`: list and download."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.arguments import AsJson, Reference
from gpuyard.cli.output import ago, print_page, print_table, size
from gpuyard.cli.session import connect
from gpuyard.domain.errors import NotFoundError

if TYPE_CHECKING:
    from gpuyard.domain.jobs import Checkpoint


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(checkpoints)


def checkpoints(
    job: Reference,
    download: Annotated[
        str | None,
        typer.Option(help="Save this one: its id, file name, step, or `newest`."),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to; a folder or a file name.")
    ] = Path(),
    as_json: AsJson = False,
) -> None:
    """List a job's checkpoints, or download one."""
    with connect() as client:
        handle = client.job(job)
        found = handle.checkpoints()
        if download is not None:
            wanted = found
            if download != "newest":
                wanted = [saved for saved in found if download in _names_of(saved)]
            if not wanted:
                known = ", ".join(saved.path for saved in found) or "none"
                raise NotFoundError(
                    f"Job {handle.id} has no checkpoint {download!r}.",
                    f"Kept: {known}.",
                )
            typer.echo(client.download(wanted[-1], output))
            return
    if as_json:
        print_page(found)
        return
    rows = [
        (
            saved.id[-8:],
            saved.path,
            saved.step,
            size(saved.size),
            ago(saved.created_at),
            saved.sha256[:12],
        )
        for saved in found
    ]
    columns = ("ID", "PATH", "STEP", "SIZE", "SAVED", "SHA256")
    print_table(
        columns,
        rows,
        empty="No checkpoints. Name them with --checkpoint when you run a job.",
    )


def _names_of(saved: "Checkpoint") -> tuple[str, ...]:
    """By what a checkpoint can be asked for."""
    file_name = saved.path.rsplit("/", 1)[-1]
    return saved.id, saved.path, file_name, str(saved.step)
