"""Tells the owner of a job when its run looks wrong: a loss that rises, a GPU that
waits, memory that grows.
"""

from collections.abc import Sequence

from gpuyard.controller.core import Core
from gpuyard.controller.job_warnings import warn
from gpuyard.domain import wire
from gpuyard.domain.events import EventKind
from gpuyard.domain.jobspec import JobKind
from gpuyard.domain.printable import printable
from gpuyard.insight.run_health import Finding, RunHealth
from gpuyard.scheduler.attempts import LiveAttempt

# Model servers and workers rest between their requests.
_WATCHED = (JobKind.COMMAND, JobKind.SCRIPT)


class RunWatch:
    """Tells each thing once for each job, by a warning and an event `job.warning`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._health: dict[str, RunHealth] = {}

    def points_seen(
        self, attempt: LiveAttempt, points: Sequence[wire.SeriesPoint]
    ) -> None:
        """Look at new points of a running attempt."""
        if not points:
            return
        health = self._health_of(attempt)
        if health is None:
            return
        for point in points:
            finding = health.see(point.name, point.step, point.value, point.at)
            if finding:
                self._tell(attempt, finding)

    def loss_not_finite(self, attempt: LiveAttempt, words: str) -> None:
        """The program of an attempt printed a loss that is no number."""
        health = self._health_of(attempt)
        if health is None:
            return
        finding = health.see_not_finite(printable(words))
        if finding:
            self._tell(attempt, finding)

    def _health_of(self, attempt: LiveAttempt) -> RunHealth | None:
        known = self._health.get(attempt.id)
        if known:
            return known
        live = self._core.view.jobs.get(attempt.job_id)
        if live is None or live.kind not in _WATCHED:
            return None
        self._forget_ended()
        shape = live.shape
        health = RunHealth(shape.cpus, 1000 * shape.memory_gb, shape.gpus)
        self._health[attempt.id] = health
        return health

    def _forget_ended(self) -> None:
        running = self._core.view.attempts
        if len(self._health) > 2 * len(running):
            kept = {id: health for id, health in self._health.items() if id in running}
            self._health = kept

    def _tell(self, attempt: LiveAttempt, finding: Finding) -> None:
        job = self._core.queries.job(attempt.job_id)
        if job is None:
            return
        told: list[str] = job["warnings"] or []
        # An earlier attempt, or an earlier server, may have told it with other figures.
        if any(warning.startswith(finding.title) for warning in told):
            return
        info = {"topic": finding.topic.value, "detail": finding.detail}
        warn(self._core, attempt, str(finding), EventKind.JOB_WARNING, info)
