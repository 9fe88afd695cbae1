"""`gpuyard checkpoints`: list and download."""

from pathlib import Path
from typing import Annotated

import typer

from gpuyard.cli.arguments import AsJson, Reference
from gpuyard.cli.output import ago, print_page, print_table, size
from gpuyard.cli.session import connect
from gpuyard.domain.errors import NotFoundError


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
            wanted = [
                c
                for c in found
                if download in (c.id, c.path, c.path.rsplit("/", 1)[-1], str(c.step))
            ]
            wanted = found if download == "newest" else wanted
            if not wanted:
                known = ", ".join(c.path for c in found) or "none"
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
        (c.id[-8:], c.path, c.step, size(c.size), ago(c.created_at), c.sha256[:12])
        for c in found
    ]
    columns = ("ID", "PATH", "STEP", "SIZE", "SAVED", "SHA256")
    print_table(
        columns,
        rows,
        empty="No checkpoints. Name them with --checkpoint when you run a job.",
    )
