"""`python -m benchmarks.lab`: a week of a lab in virtual time, decided by the real
scheduler. It prints what each project has used and what was due to it; `--write` puts
the table and a plot into docs/benchmarks.md.
"""

import argparse
from collections.abc import Iterator, Sequence

from benchmarks.bench import ROOT
from benchmarks.figures import Rows, markdown_table
from benchmarks.page import computed_by, store_table
from tests.support.lab_week import (
    BOOKINGS,
    DAYS,
    GPUS,
    HOUR,
    NEARLY_ALL,
    ORGANISATIONS,
    POOR,
    PROJECTS,
    LabWeek,
)

PLOT = ROOT / "docs" / "assets" / "lab-week.svg"
WIDTH = 880
LEFT = 150
RIGHT = 20
TOP = 56
PANEL = 104
GAP = 22
BOTTOM = 34
SMOOTHED = 6
"""Hours of which the plot shows the mean."""
_USED = "#3572b0"
_DUE = "#d9480f"
_TEXT = "#24292f"
_GRID = "#d0d7de"
_BOOKED = "#f5c542"
_DAY_NAMES = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def table(week: LabWeek) -> Rows:
    """What each project has used, beside what was due to it."""
    rows = [["project", "of", "shares", "used", "due", "difference"]]
    for project, share in PROJECTS.items():
        used = 100 * week.part(project)
        due = 100 * week.part_due(project)
        of = f"{share.organisation} ({ORGANISATIONS[share.organisation]:g})"
        rows.append(
            [
                project,
                of,
                f"{share.shares:g}",
                f"{used:.1f} %",
                f"{due:.1f} %",
                f"{used - due:+.1f} points",
            ]
        )
    return rows


# --- the plot ---


def plot(week: LabWeek) -> str:
    """An SVG with a panel for each project: GPUs used and due, over the week."""
    height = TOP + len(PROJECTS) * (PANEL + GAP) + BOTTOM - GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        f' font-family="sans-serif" font-size="13" fill="{_TEXT}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        *_legend(),
    ]
    for number, project in enumerate(PROJECTS):
        parts += _panel(week, project, TOP + number * (PANEL + GAP))
    parts += _days(height - BOTTOM + 18)
    return "\n".join([*parts, "</svg>", ""])


def _legend() -> Iterator[str]:
    yield (
        f'<text x="{LEFT}" y="18" font-size="15" font-weight="bold">GPUs of {GPUS} by'
        f" project, mean of {SMOOTHED} hours</text>"
    )
    yield f'<rect x="{LEFT}" y="29" width="22" height="12" fill="{_USED}" opacity="0.55"/>'
    yield f'<text x="{LEFT + 28}" y="40">used</text>'
    yield (
        f'<path d="M{LEFT + 80} 35h22" stroke="{_DUE}" stroke-width="2.5"'
        ' stroke-dasharray="6 4"/>'
    )
    yield f'<text x="{LEFT + 108}" y="40">due by shares, among who wants any</text>'
    yield f'<rect x="{LEFT + 372}" y="29" width="22" height="12" fill="{_BOOKED}" opacity="0.5"/>'
    yield f'<text x="{LEFT + 400}" y="40">reserved for the project</text>'


def _panel(week: LabWeek, project: str, top: int) -> Iterator[str]:
    """One project: its axis, its reservations, what it used and what was due."""
    bottom = top + PANEL
    share = PROJECTS[project]
    yield f'<text x="12" y="{top + 22}" font-weight="bold">{project}</text>'
    whole = ORGANISATIONS[share.organisation]
    yield f'<text x="12" y="{top + 40}" font-size="11">{share.shares:g} of {_siblings(project):g} in</text>'
    yield f'<text x="12" y="{top + 54}" font-size="11">{share.organisation} ({whole:g} of {sum(ORGANISATIONS.values()):g})</text>'
    for holder, gpus, begin, end in BOOKINGS:
        if holder == project:
            x = _x(begin)
            y = _y(gpus, bottom)
            yield (
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{_x(end) - x:.1f}"'
                f' height="{bottom - y:.1f}" fill="{_BOOKED}" opacity="0.5"/>'
            )
    for gpus in (0, GPUS // 2, GPUS):
        y = _y(gpus, bottom)
        yield f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{_GRID}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" font-size="11">{gpus}</text>'
    used = _smoothed([hour.used[project] for hour in week.hours])
    due = _smoothed([hour.due[project] for hour in week.hours])
    area = f"M{LEFT} {bottom}L{_line(used, bottom)}L{_x(len(used)):.1f} {bottom}Z"
    yield f'<path d="{area}" fill="{_USED}" opacity="0.55"/>'
    yield (
        f'<path d="M{_line(due, bottom)}" fill="none" stroke="{_DUE}"'
        ' stroke-width="2.5" stroke-dasharray="6 4"/>'
    )
    if project == POOR:
        yield from _budget(week, top, bottom)


def _budget(week: LabWeek, top: int, bottom: int) -> Iterator[str]:
    """When nearly all of its budget was spent."""
    assert week.ran_out_at is not None
    x = _x((week.ran_out_at - week.begins_at) / HOUR)
    spent = f"{NEARLY_ALL:.0%} of its budget is spent"
    yield f'<path d="M{x:.1f} {top}V{bottom}" stroke="{_TEXT}"/>'
    yield f'<text x="{x + 6:.1f}" y="{top + 16}">{spent}</text>'


def _days(y: int) -> Iterator[str]:
    for day in range(DAYS):
        middle = _x(24 * day + 12)
        yield f'<text x="{middle:.1f}" y="{y}" text-anchor="middle">{_DAY_NAMES[day]}</text>'
        if day:
            bottom = y - 18
            yield (
                f'<path d="M{_x(24 * day):.1f} {TOP}V{bottom}" stroke="{_GRID}"'
                ' stroke-dasharray="2 4"/>'
            )


def _siblings(project: str) -> float:
    """The shares of all projects of its organisation."""
    of = PROJECTS[project].organisation
    return sum(share.shares for share in PROJECTS.values() if share.organisation == of)


def _smoothed(values: Sequence[float]) -> list[float]:
    """The mean of the hours around each."""
    half = SMOOTHED // 2
    windows = (
        values[max(0, index - half) : index + half] for index in range(len(values))
    )
    return [sum(window) / len(window) for window in windows]


def _line(values: Sequence[float], bottom: int) -> str:
    points = [
        f"{_x(index + 0.5):.1f} {_y(value, bottom):.1f}"
        for index, value in enumerate(values)
    ]
    return "L".join(points)


def _x(hour: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * hour / (DAYS * 24)


def _y(gpus: float, bottom: int) -> float:
    return bottom - PANEL * gpus / GPUS


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.lab", description=__doc__
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="put the table and the plot into docs/benchmarks.md",
    )
    arguments = parser.parse_args()
    week = LabWeek().run()
    rows = table(week)
    print(markdown_table(rows))
    if arguments.write:
        # The table first: the plot would count as a change of what is measured.
        store_table("lab", computed_by("python -m benchmarks.lab"), rows)
        PLOT.write_text(plot(week))


if __name__ == "__main__":
    main()
