"""The health of providers, from the polls and from the ends of attempts."""

from collections import Counter
from typing import Any

from gpuyard.controller.attempt_outcome import AttemptOutcome, final_state
from gpuyard.controller.core import Core
from gpuyard.domain.events import Event
from gpuyard.domain.health import DAY_S, Health
from gpuyard.domain.reasons import Blame, Reason
from gpuyard.scheduler.attempts import LiveAttempt
from gpuyard.scheduler.jobs import LiveJob


class ProviderHealth:
    """The health of each provider, in `by_provider` by name.

    `ends` counts the attempts that ended since the server started, by provider and
    outcome: a state of a job, `lost` or `preempted`.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self.by_provider: dict[str, Health] = {}
        self.ends: Counter[tuple[str, str]] = Counter()

    def of(self, provider: str) -> Health:
        """The provider's health; a provider not checked yet counts as healthy."""
        health = self.by_provider.get(provider)
        if health is None:
            health = self.by_provider[provider] = Health(self._core.clock())
        return health

    def checked(self, provider: str, problem: str = "") -> None:
        """Note a check and its problem, if any; a change of health becomes an event."""
        now = self._core.clock()
        health = self.of(provider)
        kind = health.checked(now, problem)
        if kind is not None:
            self._core.emit([Event(kind, now, (), None, health.data(provider))])

    def ended(
        self, job: LiveJob, attempt: LiveAttempt, outcome: AttemptOutcome
    ) -> None:
        """Count the end of an attempt.

        An attempt that was withdrawn before it began, or whose checkpoint could not be
        fetched, does not count.
        """
        if any(
            Reason.of(text).never_began for text in (outcome.stopped, outcome.reason)
        ):
            return
        state, reason = final_state(job, outcome)
        result = state.value
        if outcome.lost:
            result = "lost"
        elif reason == Reason.PREEMPTED:
            result = "preempted"
        self.ends[attempt.provider, result] += 1
        place_is_to_blame = Reason.of(reason).blame is Blame.PLACE
        well = not outcome.lost and not place_is_to_blame
        self.of(attempt.provider).attempted(self._core.clock(), well=well)

    def rates(self, provider: str) -> dict[str, Any]:
        """The success rates of the last hour and day; None without any attempts."""
        health = self.of(provider)
        now = self._core.clock()
        return {
            "success_rate_hour": health.success_rate(now),
            "success_rate_day": health.success_rate(now, DAY_S),
        }
