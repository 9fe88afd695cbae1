"""Sites: on each node, for each shape, the attempts that hold a place and those sent ahead to take one over.

They also remember how long the jobs of a shape last, by which the window of short ones is measured.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpuyard.domain.shape import Shape

# How much the newest duration counts against all before it, and how many must be seen before they count at all.
_NEWEST, _ENOUGH = 0.2, 3
_MOST_SHAPES = 10_000


@dataclass(slots=True)
class Site:
    """One shape on one node: ids of attempts with a place, and of those that wait for one, first come first."""

    running: dict[str, None] = field(default_factory=dict[str, None])
    ahead: dict[str, None] = field(default_factory=dict[str, None])


@dataclass(slots=True)
class Sites:
    """All sites, by shape and node."""

    _sites: dict[Shape, dict[str, Site]] = field(default_factory=dict[Shape, dict[str, Site]])
    _seconds: dict[Shape, tuple[float, int]] = field(default_factory=dict[Shape, tuple[float, int]])
    ahead: dict[str, None] = field(default_factory=dict[str, None])
    """Every attempt sent ahead."""

    def enter(self, attempt_id: str, shape: Shape, node_id: str, *, ahead: bool) -> None:
        """An attempt has a place on the node, or waits there for one."""
        site = self._sites.setdefault(shape, {}).setdefault(node_id, Site())
        if ahead:
            site.ahead[attempt_id] = self.ahead[attempt_id] = None
        else:
            site.running[attempt_id] = None

    def leave(self, attempt_id: str, shape: Shape, node_id: str) -> None:
        """Take the attempt out; nothing changes when it is not in."""
        site = self.of(shape).get(node_id)
        if site is None:
            return
        site.running.pop(attempt_id, None)
        site.ahead.pop(attempt_id, None)
        self.ahead.pop(attempt_id, None)
        if not site.running and not site.ahead:
            del self._sites[shape][node_id]
            if not self._sites[shape]:
                del self._sites[shape]

    def of(self, shape: Shape) -> dict[str, Site]:
        """The sites of a shape, by node."""
        return self._sites.get(shape) or {}

    def learn(self, shape: Shape, seconds: float) -> None:
        """A job of this shape has run for so long."""
        mean, count = self._seconds.get(shape, (seconds, 0))
        if len(self._seconds) > _MOST_SHAPES:
            self._seconds.clear()
        self._seconds[shape] = mean + _NEWEST * (max(seconds, 0.0) - mean), count + 1

    def forget(self, shape: Shape) -> None:
        """What was learned of the shape's duration no longer holds."""
        self._seconds.pop(shape, None)

    def seconds(self, shape: Shape) -> float | None:
        """How long jobs of this shape last of late; None while too few were seen."""
        mean, count = self._seconds.get(shape, (0.0, 0))
        return mean if count >= _ENOUGH else None

    def brief(self, limit_s: float) -> Iterator[Shape]:
        """The shapes that run now and last less than `limit_s`."""
        return (shape for shape in self._sites if (seconds := self.seconds(shape)) is not None and seconds < limit_s)
