"""The corpus of real training logs in `tests/data/corpus`, and how well the reader of
output finds their points.

Each log has a file beside it that says which program printed it and which points it
shows. Those were written by hand or by a program of their own, never by the reader.
"""

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isnan
from pathlib import Path

from gpuyard.insight.progress import MetricPoint, ProgressReader

CORPUS = Path(__file__).parents[1] / "data" / "corpus"

# Name, step and value of one point.
Point = tuple[str, int | None, float]


@dataclass(frozen=True, slots=True)
class CorpusLog:
    """One log, and the points that it shows.

    A reader may report points of the names in `tolerated`, such as a throughput, or
    leave them; they count neither for nor against it. `held_out` logs were chosen and
    described before anybody looked at how they are read.
    """

    name: str
    program: str
    version: str
    source: str
    held_out: bool
    tolerated: frozenset[str]
    points: tuple[Point, ...]
    output: bytes


@dataclass(frozen=True, slots=True)
class Score:
    """How many points a reader found, how many of those are right, and how many there
    are to find.
    """

    found: int
    right: int
    expected: int

    @property
    def precision(self) -> float:
        """The share of the found points that are right; 1 if none was found."""
        return self.right / self.found if self.found else 1.0

    @property
    def recall(self) -> float:
        """The share of the expected points that were found; 1 if none is expected."""
        return self.right / self.expected if self.expected else 1.0

    def __add__(self, other: "Score") -> "Score":
        return Score(
            self.found + other.found,
            self.right + other.right,
            self.expected + other.expected,
        )


def corpus() -> list[CorpusLog]:
    """All logs, by name."""
    return [_load(path) for path in sorted(CORPUS.glob("*.toml"))]


def read_points(output: bytes, size: int | None = None) -> list[MetricPoint]:
    """The points that gpuyard finds in a whole log, read in chunks of `size` bytes
    (None: all at once).
    """
    reader = ProgressReader()
    points: list[MetricPoint] = []
    step = size or len(output)
    for start in range(0, len(output), step):
        points += reader.feed(output[start : start + step], 0.0)
    return points + reader.finish(0.0)


def score(log: CorpusLog) -> Score:
    """How well the log is read: a point is right if name, step and value are."""
    found = found_points(log)
    right = (Counter(found) & Counter(log.points)).total()
    return Score(len(found), right, len(log.points))


def found_points(log: CorpusLog) -> list[Point]:
    """The points that gpuyard finds in `log`, without those of tolerated names."""
    return [
        (point.name, point.step, point.value)
        for point in read_points(log.output)
        if point.name not in log.tolerated
    ]


def total(scores: Iterable[Score]) -> Score:
    """The sum over several logs, in which each point weighs the same."""
    return sum(scores, Score(0, 0, 0))


def _load(path: Path) -> CorpusLog:
    about = tomllib.loads(path.read_text())
    return CorpusLog(
        name=path.stem,
        program=about["program"],
        version=about["version"],
        source=about["source"],
        held_out=about["held_out"],
        tolerated=frozenset(about["tolerated"]),
        points=tuple(_points(about["series"])),
        output=path.with_suffix(".log").read_bytes(),
    )


def _points(series: Mapping[str, list[tuple[float, float]]]) -> Iterable[Point]:
    """Points of series as in the file, where `nan` stands for a step that the log does
    not tell.
    """
    for name, pairs in series.items():
        for step, value in pairs:
            yield name, None if isnan(step) else int(step), float(value)
