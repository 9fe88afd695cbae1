"""Prefetch sites: for each node and shape, the attempts that run there and the
prefetched ones that wait.

They also know how long jobs of a shape take, which limits how many are prefetched.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpuyard.domain.shape import Shape

# The weight of the newest duration in the mean, and how many durations make a mean.
_NEWEST = 0.2
_ENOUGH = 3
_MOST_SHAPES = 10_000


@dataclass(slots=True)
class PrefetchSite:
    """One shape on one node: the ids of attempts that run, and of those that wait for
    a place, in the order of their arrival.
    """

    running: dict[str, None] = field(default_factory=dict[str, None])
    waiting: dict[str, None] = field(default_factory=dict[str, None])


@dataclass(slots=True)
class PrefetchSites:
    """All sites. `waiting` holds the ids of all prefetched attempts."""

    _sites: dict[Shape, dict[str, PrefetchSite]] = field(
        default_factory=dict[Shape, dict[str, PrefetchSite]]
    )
    _seconds: dict[Shape, tuple[float, int]] = field(
        default_factory=dict[Shape, tuple[float, int]]
    )
    waiting: dict[str, None] = field(default_factory=dict[str, None])

    def add(
        self, attempt_id: str, shape: Shape, node_id: str, *, prefetched: bool
    ) -> None:
        """Add an attempt that runs on the node, or, if `prefetched`, waits there."""
        site = self._sites.setdefault(shape, {}).setdefault(node_id, PrefetchSite())
        if prefetched:
            site.waiting[attempt_id] = None
            self.waiting[attempt_id] = None
        else:
            site.running[attempt_id] = None

    def remove(self, attempt_id: str, shape: Shape, node_id: str) -> None:
        """Remove the attempt; idempotent."""
        site = self.by_node(shape).get(node_id)
        if site is None:
            return
        site.running.pop(attempt_id, None)
        site.waiting.pop(attempt_id, None)
        self.waiting.pop(attempt_id, None)
        if not site.running and not site.waiting:
            del self._sites[shape][node_id]
            if not self._sites[shape]:
                del self._sites[shape]

    def by_node(self, shape: Shape) -> dict[str, PrefetchSite]:
        """The sites of a shape, by node."""
        return self._sites.get(shape) or {}

    def note_duration(self, shape: Shape, seconds: float) -> None:
        """A job of this shape ran for so many seconds."""
        mean, count = self._seconds.get(shape, (seconds, 0))
        if len(self._seconds) > _MOST_SHAPES:
            self._seconds.clear()
        self._seconds[shape] = mean + _NEWEST * (max(seconds, 0.0) - mean), count + 1

    def forget_duration(self, shape: Shape) -> None:
        """Forget how long jobs of this shape take."""
        self._seconds.pop(shape, None)

    def mean_duration_s(self, shape: Shape) -> float | None:
        """How long recent jobs of this shape took; None while too few were seen."""
        mean, count = self._seconds.get(shape, (0.0, 0))
        return mean if count >= _ENOUGH else None

    def short_shapes(self, limit_s: float) -> Iterator[Shape]:
        """The shapes that run now and take less than `limit_s` seconds."""
        for shape in self._sites:
            seconds = self.mean_duration_s(shape)
            if seconds is not None and seconds < limit_s:
                yield shape
