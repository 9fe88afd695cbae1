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
from gpuyard.domain.errors import InvalidInputError, RefusedError

if TYPE_CHECKING:
    from gpuyard.config.paths import Home

_SHOWN = 20


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(audit)


def audit(
    lines: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--lines",
            min=1,
            show_default="20; with --jsonl, all",
            help="How many, the newest.",
        ),
    ] = None,
    as_json: AsJson = False,
    as_jsonl: Annotated[
        bool,
        typer.Option("--jsonl", help="Print all lines, as JSON lines: to keep them."),
    ] = False,
) -> None:
    """Show who asked this home's server with and without the token, and who changed
    what; the newest line last.
    """
    if as_json and as_jsonl:
        raise InvalidInputError.of("--jsonl", "does not go with --json", "give one")
    files = _home().audit_logs()
    if as_jsonl:
        chosen = _newest(files, lines) if lines else _all(files)
        for line in chosen:
            typer.echo(json.dumps(line))
        return
    found = _newest(files, lines or _SHOWN)
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


def _all(files: list[Path]) -> Iterator[dict[str, Any]]:
    """The lines of the files, which come newest first; the newest line last."""
    for file in reversed(files):
        yield from _lines(file)


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    for text in file.read_bytes().splitlines():
        try:
            yield json.loads(text)
        except ValueError:  # a full disk cut it off
            continue
