"""Stores the points of metrics, up to a limit for each job: a program that prints a
metric in each of its steps for months must not fill the ledger.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from gpuyard.controller.core import Core
from gpuyard.controller.job_warnings import warn
from gpuyard.domain import wire
from gpuyard.domain.events import EventKind
from gpuyard.scheduler.attempts import LiveAttempt


@dataclass(slots=True)
class _StoredPoints:
    """How many points of a job are stored: of each attempt and name, and in all."""

    counts: dict[tuple[str, str], int]
    total: int = field(init=False)
    is_told: bool = False

    def __post_init__(self) -> None:
        self.total = sum(self.counts.values())


class MetricPoints:
    """Knows how many points of each running job are stored."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._most = core.settings.jobs.metric_points
        self._stored: dict[str, _StoredPoints] = {}

    def add(self, attempt: LiveAttempt, points: Sequence[wire.SeriesPoint]) -> None:
        """Store new points of a running attempt, as far as the limit allows; its owner
        is told once when it does not.
        """
        if not points:
            return
        stored = self._of(attempt.job_id)
        ids = {"attempt_id": attempt.id, "job_id": attempt.job_id}
        rows = [
            {**ids, **msgspec.structs.asdict(point)}
            for point in points
            if self._takes(stored, attempt.id, point)
        ]
        if rows:
            self._core.writer.add_points(rows)
        if len(rows) < len(points) and not stored.is_told:
            stored.is_told = True
            self._tell(attempt)

    def _takes(
        self, stored: _StoredPoints, attempt_id: str, point: wire.SeriesPoint
    ) -> bool:
        """Whether the point may be stored. An agent that starts again reads the log
        again, so what is stored already comes again. Numbers that are left out count,
        because they may still come.
        """
        key = attempt_id, point.name
        count = stored.counts.get(key, 0)
        added = max(point.n + 1 - count, 0)
        if added and stored.total + added > self._most:
            return False
        stored.counts[key] = count + added
        stored.total += added
        return True

    def _of(self, job_id: str) -> _StoredPoints:
        known = self._stored.get(job_id)
        if known is None:
            self._forget_ended()
            counts = self._core.queries.point_counts(job_id)
            known = self._stored[job_id] = _StoredPoints(counts)
        return known

    def _forget_ended(self) -> None:
        live = self._core.view.jobs
        if len(self._stored) > 2 * len(self._core.view.attempts):
            kept = {key: one for key, one in self._stored.items() if key in live}
            self._stored = kept

    def _tell(self, attempt: LiveAttempt) -> None:
        warning = (
            f"its metrics have reached the limit of {self._most:,} points: later ones"
            " are not stored; let it print them less often, or raise metric_points in"
            " [jobs] of the settings"
        )
        info = {
            "topic": "metric_points",
            "detail": f"{self._most:,} points are stored.",
        }
        warn(self._core, attempt, warning, EventKind.JOB_WARNING, info)
