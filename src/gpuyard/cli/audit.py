"""`gpuyard audit`: who was admitted and refused by this home's server, and who changed
what.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.arguments import AsJson
from gpuyard.cli.output import clock, print_page, print_table
from gpuyard.domain.errors import RefusedError

if TYPE_CHECKING:
    from gpuyard.config.paths import Home


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(audit)


def audit(
    lines: Annotated[
        int, typer.Option("-n", "--lines", min=1, help="How many, the newest.")
    ] = 20,
    as_json: AsJson = False,
) -> None:
    """Show who asked this home's server with and without the token, and who changed
    what; the newest line last.
    """
    found = _newest(_home().audit_logs(), lines)
    if as_json:
        print_page(found)
        return
    rows = [
        (
            clock(line["at"]),
            line["event"],
            line["who"],
            line.get("for"),
            line["from"],
            line["what"],
            line["outcome"],
            line["count"],
        )
        for line in found
    ]
    columns = ("AT", "EVENT", "WHO", "FOR", "FROM", "WHAT", "OUTCOME", "COUNT")
    print_table(columns, rows, empty="The audit log is empty.")


def _home() -> "Home":
    """The home of the server that this user's commands use. RefusedError for who may
    not read that of a shared server.
    """
    from gpuyard.client.connection import used_instance
    from gpuyard.config import shared
    from gpuyard.config.paths import Home

    if not used_instance():
        return Home.find()
    home = Home(shared.HOME)
    if not os.access(home.logs, os.R_OK | os.X_OK):
        raise RefusedError(
            "The audit log of the shared server is not for its members.",
            "An administrator types `sudo gpuyard audit`.",
        )
    return home


def _newest(files: list[Path], count: int) -> list[dict[str, Any]]:
    """The newest lines of the files, which come newest first."""
    found: list[dict[str, Any]] = []
    for file in files:
        missing = count - len(found)
        if missing <= 0:
            break
        found = [*list(_lines(file))[-missing:], *found]
    return found


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    for text in file.read_bytes().splitlines():
        try:
            yield json.loads(text)
        except ValueError:  # a full disk cut it off
            continue
