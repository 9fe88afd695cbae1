"""`gpuyard datasets catalogue`, and fetching a public data set that it lists."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.arguments import AsJson
from gpuyard.cli.output import print_page, print_table, size, transfer_bar

if TYPE_CHECKING:
    from gpuyard.client.dataset_catalogue import CatalogueEntry
    from gpuyard.client.dataset_download import Download

CatalogueOption = Annotated[
    Path | None,
    typer.Option("--catalogue", help="A catalogue of your own, as TOML."),
]


def catalogue(
    catalogue_file: CatalogueOption = None,
    as_json: AsJson = False,
) -> None:
    """List public data sets that `gpuyard datasets add NAME` fetches."""
    from gpuyard.client.dataset_catalogue import read_catalogue

    found = list(read_catalogue(catalogue_file).values())
    if as_json:
        print_page(found)
        return
    rows = [
        (
            entry.name,
            "-" if entry.size is None else size(entry.size),
            entry.license,
            entry.sha256[:12] if entry.sha256 else "first seen",
            entry.title,
        )
        for entry in found
    ]
    columns = ("NAME", "SIZE", "LICENCE", "SHA256", "CONTENT")
    print_table(columns, rows, empty="The catalogue is empty.")


def fetch(name: str, catalogue_file: Path | None) -> "Download":
    """Fetch a data set of the catalogue, with a bar on a terminal."""
    from gpuyard.client.dataset_catalogue import entry_of, read_catalogue
    from gpuyard.client.dataset_download import Download, downloads

    entry = entry_of(read_catalogue(catalogue_file), name)
    download = Download(entry, downloads())
    is_first = download.is_first
    found = _with_bar(entry, download)
    typer.echo(f"{entry.name}: licence: {entry.license}", err=True)
    if is_first:
        typer.echo(f"{entry.name}: first seen with the SHA-256 {found}", err=True)
    return download


def _with_bar(entry: "CatalogueEntry", download: "Download") -> str:
    if not sys.stderr.isatty():
        return download.fetch(lambda _have, _of: None)
    with transfer_bar() as bar:
        task = bar.add_task(entry.name, total=entry.size)
        return download.fetch(
            lambda have, of: bar.update(task, completed=have, total=of)
        )
