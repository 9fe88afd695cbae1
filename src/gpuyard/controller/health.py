"""How providers fare: what checks of them found, and how attempts there ended."""

from collections import Counter
from typing import Any

from gpuyard.controller import moves
from gpuyard.controller.core import Core
from gpuyard.domain.events import Event
from gpuyard.domain.health import DAY_S, Health
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.observe import PLACE_FAULTS, PREEMPTED, REVOKED, UNREACHABLE
from gpuyard.scheduler.view import LiveAttempt


class Healths:
    """The health of each provider by name; `ends` counts attempts since the server started, by provider and outcome
    (a job's state, `lost` or `preempted`)."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.known: dict[str, Health] = {}
        self.ends: Counter[tuple[str, str]] = Counter()

    def of(self, provider: str) -> Health:
        """The provider's health; one not heard of yet is well."""
        return self.known.get(provider) or self.known.setdefault(provider, Health(self._core.clock()))

    def checked(self, provider: str, problem: str = "") -> None:
        """The provider was asked something, and answered well or with a problem; whoever listens is told of changes."""
        now, health = self._core.clock(), self.of(provider)
        kind = health.checked(now, problem)
        if kind is not None:
            self._core.emit([Event(kind, now, (), None, health.data(provider))])

    def ended(self, job: LiveJob, attempt: LiveAttempt, outcome: moves.Outcome) -> None:
        """An attempt is over. One that was taken back before it began, or got no checkpoint, says nothing."""
        if outcome.stopped == REVOKED or outcome.reason == UNREACHABLE:
            return
        state, reason = moves.verdict(job, outcome)
        word = "lost" if outcome.lost else PREEMPTED if reason == PREEMPTED else state.value
        self.ends[attempt.provider, word] += 1
        well = not outcome.lost and outcome.reason not in PLACE_FAULTS
        self.of(attempt.provider).attempted(self._core.clock(), well=well)

    def rates(self, provider: str) -> dict[str, Any]:
        """The part of its attempts that went well, within an hour and a day; None where there were none."""
        health, now = self.of(provider), self._core.clock()
        return {"success_rate_hour": health.success_rate(now), "success_rate_day": health.success_rate(now, DAY_S)}
