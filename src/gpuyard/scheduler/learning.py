"""Learning: how long jobs of a type take, by those that have completed. Unfinished jobs
do not count.

The type of a job is its label `type`, or else its name without digits. Durations are
counted per type, per width (GPUs held at once) and per pair of both, as hazards (see
`gittins`). If few jobs are known, an estimate is drawn towards one from more jobs: a
pair towards the product of what its type and its width say, these towards all jobs, and
all jobs towards a scale-free prior. So an unknown type is judged by its width, and an
instance that knows no durations ranks all jobs alike.
"""

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuyard.scheduler.gittins import (
    EDGES,
    FIRST_EDGE_S,
    SPANS,
    WIDTHS,
    GittinsIndex,
    span,
)

MOST_TYPES = 1024
"""Further types are treated as one, so memory stays bounded if each job has its own
name.
"""
ENOUGH = 10
"""With fewer completed jobs, jobs start in the order of submission."""
RELEARN = 1.1
"""Indexes are computed again when the number of completed jobs, of all or of a type,
has grown by this factor.
"""
_PRIOR_WEIGHT = 2.0
"""The prior of a span counts as much as this many completed jobs."""
_MEAN_STEP = math.log(1.25)
# The weight of a job that has just completed in the usual duration of its type.
_NEWEST = 0.2
# If the clock is set back while a job runs, its duration seems negative.
_LEAST_S = 1e-3
_PRIOR = tuple(
    1.0 / (FIRST_EDGE_S if place == 0 else edge * math.sqrt(2))
    for place, edge in enumerate(EDGES)
)
_DIGITS = re.compile(r"[\W_]*\d[\w.]*|[\W_]+$")


def job_type(name: str, labels: Mapping[str, str]) -> str:
    """The type of a job: its label `type`, or else its name without digits:
    `train-resnet` for `train-resnet-017`.
    """
    return labels.get("type") or _DIGITS.sub("", name) or name


@dataclass(slots=True)
class _Counts:
    """For each span: how many jobs ended in it, and how many seconds of service jobs
    had in it.
    """

    ends: list[float] = field(default_factory=lambda: [0.0] * SPANS)
    served: list[float] = field(default_factory=lambda: [0.0] * SPANS)

    def add(self, duration_s: float) -> None:
        last = span(duration_s)
        for place in range(last):
            self.served[place] += WIDTHS[place]
        self.served[last] += duration_s - EDGES[last]
        self.ends[last] += 1.0

    def hazards(self, prior: Sequence[float]) -> list[float]:
        rows = zip(self.ends, self.served, prior, strict=True)
        return [
            (ends + _PRIOR_WEIGHT) / (served + _PRIOR_WEIGHT / prior_hazard)
            for ends, served, prior_hazard in rows
        ]


class Learning:
    """What is known about durations.

    `revision` grows when what was said about any type may have changed.
    `changed_types`: the types about which alone more was learned since
    `take_changed_types`.
    """

    def __init__(self) -> None:
        self.revision = 0
        self.completed = 0
        self.changed_types: set[str] = set()
        self._types: dict[str, str] = {}
        self._all = _Counts()
        self._counts: dict[str | int | tuple[str, int], _Counts] = {}
        self._indexes: dict[str, dict[int, GittinsIndex]] = {}
        self._total_s = 0.0
        self._usual: dict[str, float] = {}
        self._relearn_at = 1.0
        self._relearn_type_at: dict[str, float] = {}

    def type_of(self, name: str, labels: Mapping[str, str]) -> str:
        """The job's type, interned; empty if there are too many types."""
        found = job_type(name, labels)
        if found not in self._types:
            if len(self._types) >= MOST_TYPES:
                return ""
            self._types[found] = sys.intern(found)
        return self._types[found]

    def add(self, job_type: str, width: int, duration_s: float) -> None:
        """A job of this type and width (GPUs) has completed after `duration_s` seconds
        of service.
        """
        duration_s = max(duration_s, _LEAST_S)
        self._all.add(duration_s)
        for key in (job_type, width, (job_type, width)):
            counts = self._counts.get(key) or self._counts.setdefault(key, _Counts())
            counts.add(duration_s)
        self.completed += 1
        self._total_s += duration_s
        usual = self._usual.get(job_type, duration_s)
        self._usual[job_type] = usual * (duration_s / usual) ** _NEWEST
        if self.completed >= self._relearn_at or self.completed == ENOUGH:
            self._relearn_at = self.completed * RELEARN
            self._indexes.clear()
            self.revision += 1
        elif self._has_grown(job_type):
            self._indexes.pop(job_type, None)
            self.changed_types.add(job_type)

    def _has_grown(self, job_type: str) -> bool:
        """True if enough jobs of this type have completed to compute its indexes
        again.
        """
        number = sum(self._counts[job_type].ends)
        if number < self._relearn_type_at.get(job_type, 0.0):
            return False
        self._relearn_type_at[job_type] = number * RELEARN
        return True

    def take_changed_types(self) -> set[str]:
        """The types about which alone more was learned since the last call."""
        changed_types = self.changed_types
        self.changed_types = set()
        return changed_types

    def index(self, job_type: str, width: int, served_s: float) -> float:
        """The Gittins index (per second) of a job of this type and width after
        `served_s` seconds of service.

        It is 0 for all jobs while fewer than `ENOUGH` have completed.
        """
        if self.completed < ENOUGH:
            return 0.0
        known = self._indexes.get(job_type) or self._indexes.setdefault(job_type, {})
        if width not in known:
            known[width] = GittinsIndex(self._hazards(job_type, width))
        return known[width].at(span(served_s))

    def usual_s(self, job_type: str) -> float | None:
        """How long (seconds) jobs of the type usually run; newer jobs weigh more. It
        changes in steps of a quarter.

        None if none has completed.
        """
        usual = self._usual.get(job_type)
        if usual is None:
            return None
        return math.exp(round(math.log(usual) / _MEAN_STEP) * _MEAN_STEP)

    @property
    def mean_s(self) -> float:
        """The mean duration (seconds) of completed jobs; 0 if none has completed. It
        changes in steps of a quarter.
        """
        if not self._total_s:
            return 0.0
        log_mean = math.log(self._total_s / self.completed)
        return math.exp(math.ceil(log_mean / _MEAN_STEP) * _MEAN_STEP)

    def _hazards(self, job_type: str, width: int) -> Sequence[float]:
        of_all = self._all.hazards(_PRIOR)
        of_type = self._hazards_of(job_type, of_all)
        of_width = self._hazards_of(width, of_all)
        rows = zip(of_type, of_width, of_all, strict=True)
        product = [by_type * by_width / by_all for by_type, by_width, by_all in rows]
        return self._hazards_of((job_type, width), product)

    def _hazards_of(
        self, key: str | int | tuple[str, int], prior: Sequence[float]
    ) -> Sequence[float]:
        counts = self._counts.get(key)
        return counts.hazards(prior) if counts else prior
