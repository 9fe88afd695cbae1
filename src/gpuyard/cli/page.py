"""`gpuyard page`: the server's page in a browser, signed in."""

import webbrowser
from typing import Annotated

import typer

from gpuyard.cli.jobs import AsJson
from gpuyard.cli.output import print_json
from gpuyard.cli.session import connect


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(page)


def page(
    open_it: Annotated[
        bool, typer.Option("--open/--no-open", help="Open it in a browser here.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Open the server's page in a browser, signed in as you.

    The link that is printed signs one browser in, within a minute.
    """
    with connect() as client:
        url = client.sign_in_link()
    if as_json:
        print_json({"url": url})
        return
    typer.echo(url)
    if open_it:
        webbrowser.open(url)
