"""What the commands of plugins print: tables for people, one JSON document for
programs.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any


def say(text: str = "") -> None:
    """One line on stdout, at once; characters that would move the cursor become
    blanks.
    """
    sys.stdout.write(
        "".join(c if c.isprintable() or c == "\n" else " " for c in text) + "\n"
    )
    sys.stdout.flush()


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(
        json.dumps(document, indent=2 if sys.stdout.isatty() else None) + "\n"
    )
    sys.stdout.flush()


def _cell(value: Any) -> str:
    return "-" if value is None or value == "" else str(value)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table without lines; numbers stand to the right."""
    cells = [list(map(_cell, row)) for row in rows]
    numeric = [
        all(isinstance(row[place], int | float | None) for row in rows)
        for place in range(len(columns))
    ]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for line in (list(columns), *cells):
        aligned = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ]
        say("  ".join(aligned).rstrip())
