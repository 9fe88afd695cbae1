"""What the answers of external queues mean: their attempts wait, run, are unknown, or
have ended.
"""

import math
import time
from collections.abc import Iterable
from dataclasses import replace

import structlog

from gpuyard.controller import transitions
from gpuyard.controller.attempt_outcome import AttemptOutcome
from gpuyard.controller.copied_logs import CopiedLogs
from gpuyard.controller.core import Core
from gpuyard.controller.launching import Launching
from gpuyard.controller.leftovers import Leftovers
from gpuyard.controller.observed_runs import ObservedRuns
from gpuyard.controller.requests import Requests
from gpuyard.controller.unknown_attempts import UnknownAttempts
from gpuyard.domain.errors import LedgerError, ProviderError
from gpuyard.domain.jobconfig import JobResult, JobStatus
from gpuyard.domain.reasons import Reason
from gpuyard.domain.states import AttemptState
from gpuyard.providers.configured import Providers
from gpuyard.scheduler.attempts import LiveAttempt

_STOP_AGAIN_S = 20.0
"""An attempt that should end and still runs is stopped again after this time, because
the first call may have been lost.
"""
log = structlog.get_logger(__name__)


class ExternalAnswers:
    """Records what the answers say of each attempt, as if an agent had reported it."""

    def __init__(
        self,
        core: Core,
        launching: Launching,
        requests: Requests,
        providers: Providers,
        copied_logs: CopiedLogs,
        observed_runs: ObservedRuns,
        leftovers: Leftovers,
    ) -> None:
        self._core = core
        self._launching = launching
        self._requests = requests
        self._providers = providers
        self._copied_logs = copied_logs
        self._observed_runs = observed_runs
        self._leftovers = leftovers
        self._unknown = UnknownAttempts()
        # When each was stopped last (monotonic seconds).
        self._stopped_at: dict[str, float] = {}
        # Attempts whose end is being recorded.
        self._finishing: set[str] = set()

    def is_finishing(self, attempt_id: str) -> bool:
        """Whether its end is known and is being recorded."""
        return attempt_id in self._finishing

    def queue_is_away(self, attempt_ids: Iterable[str]) -> None:
        """The queue of these does not answer, which says nothing about them."""
        self._unknown.queue_is_away(attempt_ids)

    def apply(
        self, attempt: LiveAttempt, result: JobResult | None, asked_at: float
    ) -> bool:
        """Apply one answer; returns True if a decision is needed. `asked_at` is a time
        of the boot clock.
        """
        if result is None or result.status is JobStatus.UNKNOWN:
            return self._note_unknown(attempt, result)
        self._unknown.known(attempt.id)
        if result.status not in (JobStatus.PENDING, JobStatus.RUNNING):
            self._finish_soon(attempt, result)
            return False
        if attempt.state is AttemptState.ENDING:
            self._stop_repeatedly(attempt)
        if result.status is JobStatus.RUNNING:
            return self._note_running(attempt, result, asked_at)
        self._observed_runs.waits(attempt.id, asked_at)
        self._note_pending(attempt, result)
        return False

    def _note_pending(self, attempt: LiveAttempt, result: JobResult) -> None:
        reason = result.error_message or result.reason
        self._core.view.external_queues.reasons[attempt.id] = reason
        if attempt.state is AttemptState.SENT:
            pending = transitions.pending(attempt, self._core.clock())
            self._core.emit([pending], can_wait=True)

    def _note_running(
        self, attempt: LiveAttempt, result: JobResult, asked_at: float
    ) -> bool:
        """Follow a running attempt; returns True if its start was not known."""
        # It may have waited again after its start.
        self._core.view.external_queues.reasons.pop(attempt.id, None)
        is_news = attempt.started_at is None
        if is_news:
            self._record_start(attempt, result)
        now = self._core.clock()
        told_s = now - (result.started_at or attempt.started_at or now)
        ran_s = self._observed_runs.runs(attempt.id, told_s, asked_at)
        self._core.run_clock.note(attempt.id, ran_s)
        if not self._providers[attempt.provider].ends_with_server:
            self._copied_logs.follow(attempt)
        return is_news

    def _record_start(self, attempt: LiveAttempt, result: JobResult) -> None:
        """Record the start, and the node and the GPUs that the queue chose."""
        core = self._core
        placements = None
        if attempt.offer:
            placements = tuple(
                replace(placement, node_id=result.node, gpu_uuids=result.gpus)
                for placement in attempt.placements
            )
        at = result.started_at or core.clock()
        job = core.view.jobs[attempt.job_id]
        started = transitions.started(job, attempt, at, {}, placements)
        core.emit([started], can_wait=True)

    def _note_unknown(self, attempt: LiveAttempt, result: JobResult | None) -> bool:
        """The queue does not know the attempt; after a while the attempt is lost.
        Returns True if a decision is needed.
        """
        if self._providers[attempt.provider].ends_with_server:
            self._ended_with_server(attempt)
            return True
        if not self._unknown.is_lost(attempt.id):
            return False
        self._unknown.known(attempt.id)
        message = result.error_message if result else None
        if not message:
            reference = attempt.provider_ref
            message = f"{attempt.provider} no longer knows this attempt ({reference})"
        lost = JobResult(
            attempt.provider_ref or "",
            JobStatus.FAILED,
            reason=Reason.ATTEMPT_LOST,
            error_message=message,
        )
        self._finish_soon(attempt, lost)
        return False

    def _ended_with_server(self, attempt: LiveAttempt) -> None:
        """Another server had the attempt, and it ended with it: queue the job again.
        The caller must decide afterwards, once for all such attempts.
        """
        stopped: str = Reason.REVOKED
        if attempt.state is AttemptState.ENDING:
            stopped = self._requests.why_ending(attempt)
        outcome = AttemptOutcome(
            self._core.clock(),
            attempt.started_at,
            # When its server was killed is not known, and it runs again from its start.
            ran_s=0.0,
            stopped=stopped,
            message="the server of gpuyard was started again",
        )
        self._launching.record_end(attempt, outcome)

    # --- ends ---

    def _finish_soon(self, attempt: LiveAttempt, result: JobResult) -> None:
        self._finishing.add(attempt.id)
        self._core.spawn(self._finish(attempt, result), "finish")

    async def _finish(self, attempt: LiveAttempt, result: JobResult) -> None:
        """Fetch what the attempt left, record its end, let the provider forget it."""
        core = self._core
        try:
            if self._providers[attempt.provider].ends_with_server:
                self._copied_logs.keep(attempt, result.logs or "")
                kept = True
                problem = ""
            else:
                kept, problem = await self._copied_logs.finish(attempt)
            message = result.error_message or problem or None
            usage = {**self._copied_logs.take_usage(attempt.id), **result.usage}
            told = replace(result, error_message=message, usage=usage)
            self._record_end(attempt.id, told)
            await core.committed()
            if kept:
                await self._leftovers.forget(attempt.provider, attempt.provider_ref)
            else:
                self._leftovers.fetch_later(attempt)
        except LedgerError:
            return  # memory was read again; the next poll finds the same
        finally:
            self._finishing.discard(attempt.id)
            self._stopped_at.pop(attempt.id, None)

    def _record_end(self, attempt_id: str, result: JobResult) -> None:
        core = self._core
        attempt = core.view.attempts.get(attempt_id)
        if attempt is None:
            return
        if attempt.started_at is None and result.started_at is not None:
            # It started and ended between two polls.
            self._record_start(attempt, result)
            attempt = core.view.attempts[attempt_id]
        is_ending = attempt.state is AttemptState.ENDING
        # The provider found no place for it and gave up; or what it rented never came
        # up, and may not again.
        never_began = attempt.started_at is None and Reason.of(result.reason).lost
        if (result.reason == Reason.REVOKED or never_began) and not is_ending:
            said = result.error_message or ""
            core.view.external_queues.note_no_capacity(
                attempt.offer, core.clock(), said
            )
        self._launching.record_end(attempt, self._outcome(attempt, result))
        core.schedule_soon()

    def _outcome(self, attempt: LiveAttempt, result: JobResult) -> AttemptOutcome:
        """A provider's answer in the form of an agent's report."""
        completed = result.status is JobStatus.COMPLETED
        stopped = self._why_stopped(attempt, result)
        reason = "" if stopped or completed else result.reason
        started_at = result.started_at or attempt.started_at
        ended_at = max(result.completed_at or self._core.clock(), started_at or 0.0)
        exit_code = result.exit_code
        signal = None
        if exit_code is not None and exit_code < 0:
            signal = -exit_code
            exit_code = None
        return AttemptOutcome(
            ended_at,
            started_at=started_at,
            ran_s=self._ran_s(attempt, result),
            paid_s=result.paid_s,
            exit_code=exit_code,
            signal=signal,
            reason=reason,
            stopped=stopped,
            message=result.error_message or "",
            usage=result.usage,
            lost=Reason.of(reason).lost,
        )

    def _ran_s(self, attempt: LiveAttempt, result: JobResult) -> float | None:
        """For how many seconds an attempt ran that has ended, whatever becomes of wall
        clocks; None if it did not run.
        """
        started_at = result.started_at or attempt.started_at
        if result.ran_s is not None or started_at is None:
            return result.ran_s
        told_s = (result.completed_at or self._core.clock()) - started_at
        age_s = self._providers[attempt.provider].answer_age_s
        return self._observed_runs.ended(attempt.id, told_s, age_s)

    def _why_stopped(self, attempt: LiveAttempt, result: JobResult) -> str:
        """Why gpuyard or a person ended the attempt; empty if it ended by itself.

        This decides whether the job is retried.
        """
        is_ending = attempt.state is AttemptState.ENDING
        if result.status is JobStatus.CANCELLED:
            # If not by us, it was removed from the external queue: queue the job again.
            if is_ending:
                return self._requests.why_ending(attempt)
            return Reason.PREEMPTED
        is_over_budget = is_ending and attempt.reason == Reason.BUDGET
        if Reason.of(result.reason).means_stopped and not is_over_budget:
            return result.reason
        # An attempt that completed before the stop reached it counts as completed.
        if is_ending and result.status is not JobStatus.COMPLETED:
            return self._requests.why_ending(attempt)
        return ""

    # --- stops ---

    def _stop_repeatedly(self, attempt: LiveAttempt) -> None:
        """Stop an attempt that should end, again and again while it does not."""
        now = time.monotonic()
        if now - self._stopped_at.get(attempt.id, -math.inf) >= _STOP_AGAIN_S:
            self._stopped_at[attempt.id] = now
            self._core.spawn(self._stop_again(attempt), "stop")

    async def _stop_again(self, attempt: LiveAttempt) -> None:
        # The server may have been killed before the first call.
        try:
            await self._requests.stop(attempt, self._requests.why_ending(attempt))
        except ProviderError as error:
            log.warning(
                "a provider could not end an attempt, will try again",
                attempt=attempt.id,
                error=str(error),
            )
            self._stopped_at.pop(attempt.id, None)
