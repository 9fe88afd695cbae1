"""Learning: how long jobs of a type take, from those that have completed. Nothing is read of jobs that have not.

A type is a job's label `type`, else its name without its digits. Durations are counted per type, per width (GPUs held
at once) and per both, as hazards (see `worth`). What is known of few jobs is drawn towards what is known of more: a
pair's hazard towards the product of what its type and its width say, these towards that of all jobs, and that towards
a law without scale. So a type never seen is judged by its width, and a yard that has seen nothing judges all alike.
"""

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuyard.scheduler.worth import EDGES, FIRST_EDGE_S, SPANS, WIDTHS, Worths, span

MOST_TYPES = 1024
"""Types beyond these are not told apart: memory stays bounded when every job has a name of its own."""
ENOUGH = 10
"""With fewer completed jobs nothing is known that would justify another order than that of submission."""
RELEARN = 1.1
"""What all jobs say, or those of a type, is taken anew each time their number has grown by this factor."""
_TRUST = 2.0
"""How many completed jobs a span must have seen to count as much as what it is drawn towards."""
_MEAN_STEP = math.log(1.25)
# How much a job that has just completed weighs in what is usual for its type.
_NEWS = 0.2
# A clock that is set back while a job runs makes its duration look negative.
_LEAST_S = 1e-3
_PRIOR = tuple(1.0 / (FIRST_EDGE_S if place == 0 else edge * math.sqrt(2)) for place, edge in enumerate(EDGES))
_DIGITS = re.compile(r"[\W_]*\d[\w.]*|[\W_]+$")


def job_type(name: str, labels: Mapping[str, str]) -> str:
    """What kind of work the job is, as far as its owner says: `train-resnet` for `train-resnet-017`."""
    return labels.get("type") or _DIGITS.sub("", name) or name


@dataclass(slots=True)
class _Counts:
    """Per span: how many jobs ended in it, and for how many seconds jobs were served in it."""

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
        return [(ends + _TRUST) / (served + _TRUST / before) for ends, served, before in rows]


class Learning:
    """What is known of durations. `revision` grows whenever all that was said may have changed; `stale` holds the types
    of which alone more is known since `settle`."""

    def __init__(self) -> None:
        self.revision = 0
        self.completed = 0
        self.stale: set[str] = set()
        self._types: dict[str, str] = {}
        self._all = _Counts()
        self._counts: dict[str | int | tuple[str, int], _Counts] = {}
        self._worths: dict[str, dict[int, Worths]] = {}
        self._total_s = 0.0
        self._usual: dict[str, float] = {}
        self._relearn_at = 1.0
        self._relearn_type_at: dict[str, float] = {}

    def type_of(self, name: str, labels: Mapping[str, str]) -> str:
        """The job's type, interned; the empty one when there are too many to tell apart."""
        found = job_type(name, labels)
        if found not in self._types:
            if len(self._types) >= MOST_TYPES:
                return ""
            self._types[found] = sys.intern(found)
        return self._types[found]

    def add(self, kind: str, width: int, duration_s: float) -> None:
        """A job of this type and width (GPUs) has completed after `duration_s` seconds of service."""
        duration_s = max(duration_s, _LEAST_S)
        self._all.add(duration_s)
        for key in (kind, width, (kind, width)):
            counts = self._counts.get(key) or self._counts.setdefault(key, _Counts())
            counts.add(duration_s)
        self.completed += 1
        self._total_s += duration_s
        usual = self._usual.get(kind, duration_s)
        self._usual[kind] = usual * (duration_s / usual) ** _NEWS
        if self.completed >= self._relearn_at or self.completed == ENOUGH:
            self._relearn_at = self.completed * RELEARN
            self._worths.clear()
            self.revision += 1
        elif self._grown(kind):
            self._worths.pop(kind, None)
            self.stale.add(kind)

    def _grown(self, kind: str) -> bool:
        """True when so many more of this type have completed that its worth is taken anew."""
        number = sum(self._counts[kind].ends)
        if number < self._relearn_type_at.get(kind, 0.0):
            return False
        self._relearn_type_at[kind] = number * RELEARN
        return True

    def settle(self) -> set[str]:
        """The types of which more is known than at the last call."""
        stale, self.stale = self.stale, set()
        return stale

    def index(self, kind: str, width: int, served_s: float) -> float:
        """Gittins' index (per second) of a job of this type and width that has had `served_s` of service.

        It is 0 for all while fewer than `ENOUGH` jobs have completed.
        """
        if self.completed < ENOUGH:
            return 0.0
        known = self._worths.get(kind) or self._worths.setdefault(kind, {})
        if width not in known:
            known[width] = Worths(self._hazards(kind, width))
        return known[width].at(span(served_s))

    def usual_s(self, kind: str) -> float | None:
        """How long (seconds) a job of the type usually runs, the newer ones weighing more; in steps of a quarter.

        None when none has completed.
        """
        usual = self._usual.get(kind)
        return None if usual is None else math.exp(round(math.log(usual) / _MEAN_STEP) * _MEAN_STEP)

    @property
    def mean_s(self) -> float:
        """The mean duration of completed jobs in seconds, in steps of a quarter; 0 while none has completed."""
        if not self._total_s:
            return 0.0
        return math.exp(math.ceil(math.log(self._total_s / self.completed) / _MEAN_STEP) * _MEAN_STEP)

    def _hazards(self, kind: str, width: int) -> Sequence[float]:
        base = self._all.hazards(_PRIOR)
        by_type, by_width = self._of(kind, base), self._of(width, base)
        both = [one * other / all_ for one, other, all_ in zip(by_type, by_width, base, strict=True)]
        return self._of((kind, width), both)

    def _of(self, key: str | int | tuple[str, int], prior: Sequence[float]) -> Sequence[float]:
        counts = self._counts.get(key)
        return counts.hazards(prior) if counts else prior
