"""A measured figure beside its floor, and the table of many."""

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


@dataclass(frozen=True)
class Figure:
    """`value` and `floor` are in `unit`; `target` bounds their ratio, or `value` itself
    where there is no floor.

    With `least` the target is the least that will do (a rate), else the most (a time, a
    size); None is told only.
    """

    group: str
    name: str
    value: float
    unit: str
    target: float | None = None
    floor: float | None = None
    floor_name: str = ""
    least: bool = False
    disk: str = "as-is"

    @property
    def ratio(self) -> float | None:
        """How many times the floor."""
        return self.value / self.floor if self.floor else None

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        if self.target is None:
            return None
        measured = self.value if self.ratio is None else self.ratio
        return measured >= self.target if self.least else measured <= self.target

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {**asdict(self), "ratio": self.ratio, "met": self.met}

    def cells(self) -> list[str]:
        """For people: group, disk, figure, value, floor, ratio, target, met."""
        floor = (
            f"{number(self.floor)} {self.unit}, {self.floor_name}"
            if self.floor is not None
            else "–"
        )
        bound = "≥" if self.least else "≤"
        times = " ×" if self.ratio is not None else f" {self.unit}".rstrip()
        target = (
            f"{bound} {number(self.target)}{times}" if self.target is not None else "–"
        )
        met = {True: "met", False: "MISSED", None: "–"}[self.met]
        ratio = f"{self.ratio:.2f}" if self.ratio is not None else "–"
        return [
            self.group,
            self.disk,
            self.name,
            f"{number(self.value)} {self.unit}",
            floor,
            ratio,
            target,
            met,
        ]


COLUMNS = ["group", "disk", "figure", "measured", "floor", "ratio", "target", ""]


def number(value: float) -> str:
    """Three figures that count, thousands apart."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def markdown(figures: Iterable[Figure]) -> str:
    """A table for a page."""
    rows = [COLUMNS, ["---"] * len(COLUMNS), *(figure.cells() for figure in figures)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def plain(figures: Iterable[Figure]) -> str:
    """A table for a terminal."""
    rows = [COLUMNS, *(figure.cells() for figure in figures)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def machine(synced_ms: float) -> str:
    """One line about the machine that was measured."""
    model = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kind = model[0] if model else "processor unknown"
    return (
        f"{os.cpu_count()} cores ({kind}), {memory_gb:.0f} GB; 4 kB appended and synced"
        f" in {synced_ms:.2f} ms."
    )


def write_into_page(mark: str, text: str) -> None:
    """Put `text` between the lines `<!-- MARK -->` and `<!-- end of MARK -->` of
    docs/benchmarks.md.
    """
    begin = f"<!-- {mark} -->\n"
    end = f"<!-- end of {mark} -->\n"
    before, found, rest = PAGE.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise SystemExit(f"benchmarks: {PAGE} has no place for {mark}")
    PAGE.write_text(f"{before}{begin}{text}\n{end}{after}")
