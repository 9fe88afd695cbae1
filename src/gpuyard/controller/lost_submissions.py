"""Submissions to external queues whose reply was lost, or that a crash has cut off:
found at their provider, or made again.
"""

import time
from collections.abc import Sequence

from gpuyard.controller import transitions
from gpuyard.controller.attempt_outcome import AttemptOutcome
from gpuyard.controller.core import Core
from gpuyard.controller.launching import Launching
from gpuyard.controller.requests import Requests
from gpuyard.domain.states import AttemptState
from gpuyard.providers.configured import Providers
from gpuyard.scheduler.attempts import LiveAttempt

_LONGEST_PAUSE_S = 5.0


class LostSubmissions:
    """Looks for attempts that may not have been submitted."""

    def __init__(
        self, core: Core, launching: Launching, requests: Requests, providers: Providers
    ) -> None:
        self._core = core
        self._launching = launching
        self._requests = requests
        self._providers = providers
        # The next pause of each attempt, and when it is looked for again (monotonic
        # seconds).
        self._searches: dict[str, tuple[float, float]] = {}

    def found(self, attempt_id: str) -> None:
        """Its provider knows it."""
        self._searches.pop(attempt_id, None)

    async def look_for(
        self, attempts: Sequence[LiveAttempt], first_pause_s: float
    ) -> None:
        """Look for those of them whose pause is over. Each is looked for less and less
        often, because a provider may refuse it again and again.
        """
        if due := self._due(attempts, first_pause_s):
            await self._find_or_submit(due)

    def _due(
        self, attempts: Sequence[LiveAttempt], first_pause_s: float
    ) -> list[LiveAttempt]:
        now = time.monotonic()
        live = self._core.view.attempts
        self._searches = {
            key: search for key, search in self._searches.items() if key in live
        }
        due: list[LiveAttempt] = []
        for attempt in attempts:
            pause_s, at = self._searches.get(attempt.id, (first_pause_s, now))
            if at <= now:
                next_pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                self._searches[attempt.id] = next_pause_s, now + pause_s
                due.append(attempt)
        return due

    async def _find_or_submit(self, attempts: Sequence[LiveAttempt]) -> None:
        """Look for the attempts at their provider; submit those that are not there
        again, all at once.
        """
        missing: list[str] = []
        try:
            for attempt in attempts:
                if await self._is_missing(attempt):
                    missing.append(attempt.id)  # noqa: PERF401  (an error may come)
        finally:
            if missing:
                await self._launching.launch(missing)

    async def _is_missing(self, attempt: LiveAttempt) -> bool:
        """Whether its submission never arrived, and it must be submitted again."""
        provider = self._providers[attempt.provider]
        found = await provider.find_by_attempt(attempt.id)
        current = self._core.view.attempts.get(attempt.id)
        if current is None:
            return False  # it has ended
        if current.provider_ref is not None or attempt.id in self._launching.under_way:
            return False  # it was submitted in the meantime
        if found is not None:
            self._core.emit([transitions.found(current, found, self._core.clock())])
        elif current.state is AttemptState.ENDING:
            outcome = AttemptOutcome(
                self._core.clock(), stopped=self._requests.why_ending(current)
            )
            self._launching.record_end(current, outcome)
            self._core.schedule_soon()
        else:
            return True
        return False
