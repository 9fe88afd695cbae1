"""Launching: intents that are in the ledger go to their provider, and never before."""

from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from gpuyard.controller import moves
from gpuyard.controller.core import Core
from gpuyard.controller.render import render
from gpuyard.domain.errors import LedgerError, ProviderError
from gpuyard.domain.states import AttemptState
from gpuyard.providers.base import GpuProviderInterface
from gpuyard.scheduler.policy import backoff_s
from gpuyard.scheduler.view import LiveAttempt

log = structlog.get_logger(__name__)


class Launching:
    """Hands attempts to providers."""

    def __init__(self, core: Core, providers: Mapping[str, GpuProviderInterface]) -> None:
        self._core = core
        self._providers = providers

    def launch_soon(self, attempt_ids: Sequence[str]) -> None:
        """Launch as soon as everything emitted so far is committed."""
        self._core.spawn(self.launch(list(attempt_ids)), "launch")

    async def launch(self, attempt_ids: Sequence[str]) -> None:
        """Once their intents are committed, submit these attempts, or submit them again.

        A provider does the same attempt only once. One that runs, is being ended or is over is left alone.
        """
        try:
            await self._core.committed()
        except LedgerError:
            return  # The intents are not in the ledger, and memory has been read anew without them.
        attempts = self._core.view.attempts
        specs = self._core.queries.specs({attempts[i].job_id for i in attempt_ids if i in attempts})
        for attempt_id in attempt_ids:
            # Looked up anew: while the one before it was submitted, this one may have been cancelled.
            attempt = self._core.view.attempts.get(attempt_id)
            if attempt and attempt.state in (AttemptState.INTENDED, AttemptState.SENT):
                await self._submit(attempt, specs[attempt.job_id])

    async def _submit(self, attempt: LiveAttempt, body: Mapping[str, Any]) -> None:
        core = self._core
        job = core.view.jobs[attempt.job_id]
        spec = core.read_spec(body)
        checkpoint = self._checkpoint(attempt.job_id, job.resume_from)
        try:
            reference = await self._providers[attempt.provider].submit_job(render(spec, attempt, checkpoint))
        except ProviderError as error:
            # Not connected: the intent stands and is sent when the node's agent says Hello.
            if error.error_code != "NOT_CONNECTED":
                self.settle(attempt, moves.Outcome(core.clock(), reason="submit_failed", message=str(error)))
            return
        current = core.view.attempts.get(attempt.id)
        if current and current.state is AttemptState.INTENDED:
            resumed_from = checkpoint["id"] if checkpoint else None
            core.emit([moves.sent(current, reference, resumed_from, core.clock())], linger=True)

    def _checkpoint(self, job_id: str, wanted: str | None) -> dict[str, Any] | None:
        """The checkpoint row to resume from: the newest kept one, or the one named."""
        if wanted is None:
            return None
        if wanted != moves.NEWEST:
            return self._core.queries.checkpoint(wanted)
        kept = [row for row in self._core.queries.checkpoints_of(job_id) if row["kept"]]
        return kept[-1] if kept else None

    def settle(self, attempt: LiveAttempt, outcome: moves.Outcome) -> None:
        """Record the end of an attempt and what follows for its job, then decide anew."""
        core = self._core
        job, current = core.view.jobs.get(attempt.job_id), core.view.attempts.get(attempt.id)
        if job is None or current is None:
            return
        not_before = None
        if moves.wants_retry(job, outcome):
            delay_s = 0.0 if outcome.stopped == "preempted" else backoff_s(core.policy, job.failures + 1)
            not_before = core.clock() + delay_s
        core.emit([moves.ended(job, current, outcome, moves.Retry(not_before))], linger=True)
        core.progress.pop(job.id, None)
        core.schedule()
