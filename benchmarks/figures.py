"""A measured figure beside its floor, round by round, and the table of many."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

A = TypeVar("A")
B = TypeVar("B")
Rows = list[list[str]]
"""A table; the first row is its head."""


def alternate(
    rounds: int, ours: Callable[[], A], floor: Callable[[], B]
) -> tuple[list[A], list[B]]:
    """Measure ours and its floor in turns, so that both meet the same minute of this
    machine: ours, floor, ours, floor, …
    """
    pairs = [(ours(), floor()) for _ in range(rounds)]
    return [mine for mine, _ in pairs], [bare for _, bare in pairs]


def in_rounds(
    values: Sequence[float],
    rounds: int,
    typical: Callable[[Sequence[float]], float] = statistics.median,
) -> list[float]:
    """What is typical in each of so many rounds of measurements that took turns."""
    size = len(values) // rounds
    return [
        typical(values[number * size : (number + 1) * size]) for number in range(rounds)
    ]


@dataclass(frozen=True)
class Figure:
    """`values` and `floors` are in `unit`, one of each from each round.

    `target` bounds the ratio to the floor, or the value itself where there is no floor
    or with `absolute`. With `least` the target is the least that will do (a rate), else
    the most (a time, a size); None is told only.
    """

    group: str
    name: str
    values: Sequence[float]
    unit: str
    target: float | None = None
    floors: Sequence[float] = ()
    floor_name: str = ""
    least: bool = False
    absolute: bool = False
    disk: str = "as-is"

    @property
    def value(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.values)

    @property
    def floor(self) -> float | None:
        """The median of the rounds."""
        return statistics.median(self.floors) if self.floors else None

    @property
    def ratios(self) -> list[float]:
        """How many times its own floor each round gave."""
        if not self.floors:
            return []
        pairs = zip(self.values, self.floors, strict=True)
        return [value / floor for value, floor in pairs]

    @property
    def ratio(self) -> float | None:
        """The median of the ratios, which is not the ratio of the medians."""
        return statistics.median(self.ratios) if self.floors else None

    @property
    def bounds_ratio(self) -> bool:
        """Whether the target bounds the ratio."""
        return bool(self.floors) and not self.absolute

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        if self.target is None:
            return None
        bounded = self.ratio if self.bounds_ratio else self.value
        assert bounded is not None
        return bounded >= self.target if self.least else bounded <= self.target

    def to_json(self) -> dict[str, Any]:
        """For programs: the same, and what follows from it."""
        derived = ("value", "floor", "ratios", "ratio", "met")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}

    def cells(self) -> list[str]:
        """For people, by COLUMNS."""
        floor = "–"
        if self.floor is not None:
            floor = f"{number(self.floor)} {self.unit}, {self.floor_name}"
        target = "–"
        if self.target is not None:
            bound = "≥" if self.least else "≤"
            unit = "×" if self.bounds_ratio else self.unit
            target = f"{bound} {number(self.target)} {unit}".rstrip()
        return [
            self.group,
            self.disk,
            self.name,
            f"{number(self.value)} {self.unit}".rstrip(),
            floor,
            self._ratio_cell(),
            str(len(self.values)),
            target,
            {True: "met", False: "MISSED", None: "–"}[self.met],
        ]

    def _ratio_cell(self) -> str:
        if self.ratio is None:
            return "–"
        if len(self.ratios) == 1:
            return times(self.ratio)
        return (
            f"{times(self.ratio)} ({times(min(self.ratios))}–{times(max(self.ratios))})"
        )


COLUMNS = [
    "group",
    "disk",
    "figure",
    "measured",
    "floor",
    "ratio",
    "rounds",
    "target",
    "",
]


def number(value: float) -> str:
    """Three figures that count, thousands apart."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def times(ratio: float) -> str:
    """How many times, for people."""
    return f"{ratio:.2f}" if ratio < 10 else number(ratio)


def markdown(figures: Iterable[Figure]) -> str:
    """A table for a page."""
    return markdown_table([COLUMNS, *(figure.cells() for figure in figures)])


def markdown_table(rows: Rows) -> str:
    """A table for a page."""
    head, *others = rows
    lines = [head, ["---"] * len(head), *others]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plain(figures: Iterable[Figure]) -> str:
    """A table for a terminal."""
    rows = [COLUMNS, *(figure.cells() for figure in figures)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
