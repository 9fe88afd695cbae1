"""Nodes whose agent is not connected, and how long their jobs may be silent."""

import asyncio
from collections.abc import Callable

from gpuyard.controller import transitions
from gpuyard.controller.core import Core
from gpuyard.domain.errors import ProviderError
from gpuyard.domain.states import JobState
from gpuyard.providers.node_provider import NodeProvider
from gpuyard.scheduler.attempts import LiveAttempt

# A broken connection is usually back within a second. After this time its jobs are
# shown as `unknown`.
UNKNOWN_AFTER_S = 10.0
# An agent without its server ends the job by its own clock: checkpoint, grace, TERM,
# KILL. The server waits for all of that, and this much longer, before it treats the job
# as dead.
SILENCE_MARGIN_S = 30.0
# Between two questions to an agent that does not answer.
_ASK_AGAIN_S = 2.0
AttemptsOn = Callable[[str], list[LiveAttempt]]
"""The attempts that the agent of a node runs."""
EndSilent = Callable[[LiveAttempt, str, float], None]
"""Ends an attempt whose node has been silent for so many seconds."""


class SilentNodes:
    """A watch over each node that is not connected."""

    def __init__(
        self, core: Core, attempts_on: AttemptsOn, end_silent: EndSilent
    ) -> None:
        self._core = core
        self._attempts_on = attempts_on
        self._end_silent = end_silent
        self._watches: dict[str, asyncio.Task[None]] = {}

    def watch(self, node_id: str) -> None:
        """Show the jobs of a silent node as `unknown` after a while, and end those
        whose `max_silence_s` has passed.
        """
        self._watches[node_id] = asyncio.create_task(
            self._watch(node_id), name=f"silence-{node_id}"
        )

    def heard(self, node_id: str) -> None:
        """The node is connected again."""
        watch = self._watches.pop(node_id, None)
        if watch:
            watch.cancel()

    async def _watch(self, node_id: str) -> None:
        core = self._core
        await asyncio.sleep(UNKNOWN_AFTER_S)
        waited = UNKNOWN_AFTER_S
        for attempt in self._attempts_on(node_id):
            job = core.view.jobs[attempt.job_id]
            if job.state is JobState.RUNNING:
                core.emit([transitions.node_silent(job, core.clock())])
        for due, attempt in self._silence_limits(node_id):
            await asyncio.sleep(max(due - waited, 0))
            waited = max(due, waited)
            self._end_silent(attempt, node_id, due)
            core.schedule()

    def _silence_limits(self, node_id: str) -> list[tuple[float, LiveAttempt]]:
        """The attempts of the node that may not be silent for ever, each with the
        seconds of silence after which it is lost; the shortest `max_silence_s` first.
        """
        attempts = self._attempts_on(node_id)
        bodies = self._core.queries.specs({attempt.job_id for attempt in attempts})
        limited: list[tuple[float, float, LiveAttempt]] = []
        for attempt in attempts:
            spec = self._core.read_spec(bodies[attempt.job_id])
            if spec.max_silence_s:
                grace_s = spec.checkpoint.grace_s
                limit_s = spec.max_silence_s + grace_s + SILENCE_MARGIN_S
                limited.append((spec.max_silence_s, limit_s, attempt))
        limited.sort(key=lambda entry: entry[0])
        return [(limit_s, attempt) for _, limit_s, attempt in limited]


async def agent_answers(provider: NodeProvider, node_id: str, attempt_id: str) -> bool:
    """Whether the agent of the node answers a question about this attempt, whatever it
    says; if not, that is known after a pause.
    """
    try:
        await provider.has_attempt(node_id, attempt_id)
    except ProviderError:
        await asyncio.sleep(_ASK_AGAIN_S)
        return False
    return True
