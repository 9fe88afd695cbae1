"""How a table is laid out that is wider than its terminal. Nothing in it is cut off.

Columns that say nothing go first. Then long cells are folded; if that leaves them too
little room, the last column goes below its row; and if even that is too wide, each row
becomes a few lines with the names of the columns in them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpuyard.cli.columns import cut, width_of

NOTHING = "-"
GAP = 2
# A column up to so wide is never folded, and a longer one keeps at least so much.
_SHORT = 14
_INDENT = "  "


@dataclass(frozen=True, slots=True)
class Layout:
    """A table as lines of cells, each as wide as `widths` say.

    `below` are lines that follow a line, by its position; they are not in columns.
    """

    columns: Sequence[str]
    widths: Sequence[int]
    lines: Sequence[Sequence[str]]
    below: dict[int, list[str]]


def without_empty(
    columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """The table without the columns in which no row has anything."""
    kept = [
        number
        for number in range(len(columns))
        if any(row[number] != NOTHING for row in rows)
    ]
    return (
        [columns[number] for number in kept],
        [[row[number] for number in kept] for row in rows],
    )


def layout(
    columns: Sequence[str], rows: Sequence[Sequence[str]], room: int
) -> Layout | None:
    """The table in `room` columns of the terminal; None if it is too wide for lines."""
    widths = natural_widths(columns, rows)
    folded = _folded_widths(widths, room)
    if folded is not None:
        lines = [line for row in rows for line in _folded(row, folded)]
        return Layout(columns, folded, lines, {})
    if sum(widths[:-1]) + GAP * (len(widths) - 2) > room:
        return None
    indent = " " * (widths[0] + GAP)
    below = {
        number: [indent + part for part in cut(row[-1], room - len(indent))]
        for number, row in enumerate(rows)
        if row[-1] != NOTHING
    }
    return Layout(columns[:-1], widths[:-1], [row[:-1] for row in rows], below)


def as_records(
    columns: Sequence[str], rows: Sequence[Sequence[str]], room: int
) -> list[str]:
    """Each row as a few lines of `NAME value`."""
    lines: list[str] = []
    for row in rows:
        line = ""
        for column, text in zip(columns, row, strict=True):
            if text == NOTHING:
                continue
            pair = f"{column} {text}"
            longer = f"{line}  {pair}" if line else pair
            if line and width_of(longer) > room:
                lines += cut(line, room)
                longer = _INDENT + pair
            line = longer
        lines += cut(line, room)
    return lines


def natural_widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """How wide each column is."""
    return [max(map(width_of, cells)) for cells in zip(columns, *rows, strict=True)]


def _folded_widths(widths: Sequence[int], room: int) -> list[int] | None:
    """Widths that fit, in which only long columns are narrower; None if none do."""
    given = [min(width, _SHORT) for width in widths]
    left = room - GAP * (len(widths) - 1) - sum(given)
    if left < 0:
        return None
    while left:
        wanting = [n for n, width in enumerate(widths) if given[n] < width]
        if not wanting:
            break
        for number in wanting[:left]:
            given[number] += 1
        left -= len(wanting[:left])
    return given


def _folded(row: Sequence[str], widths: Sequence[int]) -> list[list[str]]:
    parts = [cut(text, width) for text, width in zip(row, widths, strict=True)]
    height = max(map(len, parts))
    return [
        [part[number] if number < len(part) else "" for part in parts]
        for number in range(height)
    ]
