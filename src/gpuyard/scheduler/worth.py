"""Worth: how much a job gains per second of service, from what is known of durations like its own.

This is Gittins' index: the best ratio, over all spans of further service, of the chance that the job ends within the
span to the service it is then expected to take. Serving the highest index first gives the least mean time from arrival
to end when only the distribution of durations is known and not each duration.

Durations are described by hazards: the rate at which jobs end (per second) while their attained service is within each
of a few spans, each twice as long as the one before. A hazard table has a bounded size whatever the number of jobs.
"""

import itertools
import math
from collections.abc import Sequence

FIRST_EDGE_S = 10.0
EDGES = (0.0, *(FIRST_EDGE_S * 2**step for step in range(22)))
"""Where spans of attained service begin, in seconds: 0, 10, 20, 40, … about 240 days; the last has no end."""
SPANS = len(EDGES)
WIDTHS = (*(later - earlier for earlier, later in itertools.pairwise(EDGES)), EDGES[-1])
_NEGLIGIBLE = 1e-3


def span(served_s: float) -> int:
    """Which span a job that has had `served_s` seconds of service is in."""
    if served_s < FIRST_EDGE_S:
        return 0
    return min(SPANS - 1, 1 + int(math.log2(served_s / FIRST_EDGE_S)))


def next_span_s(served_s: float) -> float:
    """The attained service (seconds) at which a job with `served_s` comes into its next span; infinity in the last."""
    place = span(served_s)
    return EDGES[place + 1] if place + 1 < SPANS else math.inf


class Worths:
    """Gittins' index (per second) at the beginning of each span, for one hazard (per second) a span."""

    __slots__ = ("_hazards", "_known", "_survive")

    def __init__(self, hazards: Sequence[float]) -> None:
        self._hazards = hazards
        self._survive = [math.exp(-hazard * width) for hazard, width in zip(hazards, WIDTHS, strict=True)]
        # Of most types only the first few are ever asked for.
        self._known: dict[int, float] = {}

    def at(self, start: int) -> float:
        """The index at the beginning of that span."""
        if start not in self._known:
            self._known[start] = self._index(start)
        return self._known[start]

    def _index(self, start: int) -> float:
        alive, service, best = 1.0, 0.0, 0.0
        for place in range(start, SPANS):
            service += alive * (1.0 - self._survive[place]) / self._hazards[place]
            alive *= self._survive[place]
            best = max(best, (1.0 - alive) / service)
            if alive < _NEGLIGIBLE:
                break
        return best
