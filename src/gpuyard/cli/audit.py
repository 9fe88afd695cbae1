"""`gpuyard audit`: who was admitted and refused by this home's server, and who changed
what.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuyard.cli.jobs import AsJson
from gpuyard.cli.output import clock, print_page, print_table


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
    from gpuyard.config.paths import Home

    found = _newest(Home.find().audit_logs(), lines)
    if as_json:
        print_page(found)
        return
    rows = [
        (
            clock(line["at"]),
            line["event"],
            line["who"],
            line["from"],
            line["what"],
            line["outcome"],
            line["count"],
        )
        for line in found
    ]
    columns = ("AT", "EVENT", "WHO", "FROM", "WHAT", "OUTCOME", "COUNT")
    print_table(columns, rows, empty="The audit log is empty.")


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
