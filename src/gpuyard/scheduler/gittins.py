"""The Gittins index: how much a job gains per second of service, by the durations of
similar jobs.

For a span of further service, take the chance that the job ends within it, divided by
the service that it is expected to use; the index is the largest such ratio. If only the
distribution of durations is known, serving the highest index first gives the least mean
time from arrival to end.

Durations are described by hazards: the rate (per second) at which jobs end while their
attained service is in a span. Each span is twice as long as the one before, so a table
of hazards is small for any number of jobs.
"""

import itertools
import math
from collections.abc import Sequence

FIRST_EDGE_S = 10.0
EDGES = (0.0, *(FIRST_EDGE_S * 2**step for step in range(22)))
"""Where spans of attained service begin, in seconds: 0, 10, 20, 40, … about 240 days.
The last span has no end.
"""
SPANS = len(EDGES)
WIDTHS = (*(later - earlier for earlier, later in itertools.pairwise(EDGES)), EDGES[-1])
_NEGLIGIBLE = 1e-3


def span(served_s: float) -> int:
    """The number of the span in which `served_s` seconds of service are."""
    if served_s < FIRST_EDGE_S:
        return 0
    return min(SPANS - 1, 1 + int(math.log2(served_s / FIRST_EDGE_S)))


def next_span_s(served_s: float) -> float:
    """The service (seconds) at which a job with `served_s` enters its next span;
    infinity in the last span.
    """
    place = span(served_s)
    return EDGES[place + 1] if place + 1 < SPANS else math.inf


class GittinsIndex:
    """The Gittins index (per second) at the beginning of each span, from one hazard
    (per second) for each span.
    """

    __slots__ = ("_hazards", "_known", "_survive")

    def __init__(self, hazards: Sequence[float]) -> None:
        self._hazards = hazards
        self._survive = [
            math.exp(-hazard * width)
            for hazard, width in zip(hazards, WIDTHS, strict=True)
        ]
        # Computed on demand: most types need only the first few.
        self._known: dict[int, float] = {}

    def at(self, start: int) -> float:
        """The index at the beginning of the span with this number."""
        if start not in self._known:
            self._known[start] = self._index(start)
        return self._known[start]

    def _index(self, start: int) -> float:
        alive = 1.0
        service = 0.0
        best = 0.0
        for place in range(start, SPANS):
            service += alive * (1.0 - self._survive[place]) / self._hazards[place]
            alive *= self._survive[place]
            best = max(best, (1.0 - alive) / service)
            if alive < _NEGLIGIBLE:
                break
        return best
