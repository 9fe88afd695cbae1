"""External queues: providers that place jobs themselves, such as Slurm and Kubernetes.

Their nodes have no agent, so each provider is polled; its answers become the same
transitions as the reports of an agent. While a provider does not answer, its attempts
stay as they are, nothing new is sent there, and it is polled again later.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import structlog

from gpuyard.controller import transitions
from gpuyard.controller.attempt_outcome import AttemptOutcome
from gpuyard.controller.core import Core
from gpuyard.controller.health import ProviderHealth
from gpuyard.controller.launching import Launching
from gpuyard.controller.log_mirror import LogMirror
from gpuyard.controller.observed_runs import ObservedRuns
from gpuyard.controller.requests import Requests
from gpuyard.controller.unknown_attempts import UnknownAttempts
from gpuyard.domain.errors import LedgerError, ProviderError
from gpuyard.domain.jobconfig import JobResult, JobStatus
from gpuyard.domain.reasons import Reason
from gpuyard.domain.states import AttemptState
from gpuyard.providers.base import TRANSIENT, GpuProviderInterface
from gpuyard.providers.configured import Providers
from gpuyard.scheduler.external_queues import ExternalQueue
from gpuyard.scheduler.observe import note_ended_attempt
from gpuyard.scheduler.view import LiveAttempt

_HEALTH_TIMEOUT_S = 15.0
_WITHOUT_PROVIDER_EVERY_S = 2.0
_HISTORY = 500
"""When a server starts, it learns from this many of a provider's newest attempts."""
_FORGOTTEN = 32
"""How many of those the provider is asked to forget."""
_STOP_AGAIN_S = 20.0
"""An attempt that should end and still runs is stopped again after this time, because
the first call may have been lost.
"""
_MAX_SLOWDOWN = 32
"""A provider that fails is polled at most this many times less often."""
_LONGEST_SEARCH_PAUSE_S = 5.0
_OUR_REASONS = frozenset(
    {Reason.TIMED_OUT, Reason.CANCELLED, Reason.PREEMPTED, Reason.REVOKED}
)
log = structlog.get_logger(__name__)


class ExternalQueues:
    """Polls the external queues, and records what becomes of their attempts."""

    def __init__(
        self,
        core: Core,
        launching: Launching,
        requests: Requests,
        providers: Providers,
        log_mirror: LogMirror,
        health: ProviderHealth,
        observed_runs: ObservedRuns,
    ) -> None:
        self._core = core
        self._launching = launching
        self._requests = requests
        self._providers = providers
        self._log_mirror = log_mirror
        self._health = health
        self._observed_runs = observed_runs
        self._unknown = UnknownAttempts()
        # Times in these three are monotonic seconds.
        # Of attempts that may not have been submitted: the next pause, and when they
        # are looked for again.
        self._searches: dict[str, tuple[float, float]] = {}
        self._stopped_at: dict[str, float] = {}
        self._offers_read_at: dict[str, float] = {}
        # Attempts whose end is being recorded.
        self._finishing: set[str] = set()
        # Providers whose past attempts were read from the ledger.
        self._history_read: set[str] = set()

    def start(self) -> None:
        """Begin to poll. Nothing is sent to a provider before it has answered."""
        self._restore_runs()
        if self._without_provider():
            self._core.spawn(self._end_without_provider(), "attempts-without-provider")
        for name, provider in self._providers.external_queues.items():
            queue = ExternalQueue(
                name, provider.max_pending, problem="has not answered yet"
            )
            self._core.view.add_external_queues({name: queue})
            self._core.spawn(
                self._poll_repeatedly(name, provider), f"external-queue-{name}"
            )

    def _restore_runs(self) -> None:
        """Tell the providers how long their attempts have run, as earlier servers saw
        it, so that they need not believe wall clocks.
        """
        attempts = self._core.view.attempts
        self._observed_runs.restore(attempts.keys())
        for attempt in attempts.values():
            ran_s = self._observed_runs.ran_s(attempt.id)
            provider = self._providers.get(attempt.provider)
            if provider is not None and attempt.provider_ref and ran_s is not None:
                provider.has_run(attempt.provider_ref, ran_s)

    def _without_provider(self) -> list[LiveAttempt]:
        """Attempts of providers that are no longer in the settings."""
        return [
            attempt
            for attempt in self._core.view.attempts.values()
            if attempt.provider not in self._providers
        ]

    async def _end_without_provider(self) -> None:
        """Set the reason that `why` shows, and end those that are cancelled."""
        while attempts := self._without_provider():
            for attempt in attempts:
                message = f"provider {attempt.provider} is not configured any more"
                self._core.view.external_queues.reasons[attempt.id] = message
                if attempt.state is AttemptState.ENDING:
                    outcome = AttemptOutcome(
                        self._core.clock(),
                        attempt.started_at,
                        reason=Reason.ATTEMPT_LOST,
                        lost=True,
                        stopped=self._requests.why_ending(attempt),
                        message=message,
                    )
                    self._launching.record_end(attempt, outcome)
                    self._core.schedule()
            await asyncio.sleep(_WITHOUT_PROVIDER_EVERY_S)

    # --- polling ---

    async def _poll_repeatedly(self, name: str, provider: GpuProviderInterface) -> None:
        failures = 0
        while True:
            try:
                await self._poll(name, provider)
                self._health.checked(name)
                failures = 0
            except (ProviderError, OSError, TimeoutError) as error:
                failures += 1
                self._mark_unreachable(name, error)
            except LedgerError:
                pass  # memory was read again; the next poll finds the same
            except Exception as error:
                failures += 1
                log.exception(
                    "polling a provider's jobs failed, will try again", provider=name
                )
                fault = RuntimeError(f"{type(error).__name__}: {error}")
                self._mark_unreachable(name, fault)
            slowdown = min(1 << failures, _MAX_SLOWDOWN)
            await provider.news(provider.poll_s * slowdown)

    async def listing(self) -> list[dict[str, Any]]:
        """Every provider, its health, and how many attempts wait and run there."""
        healths = await asyncio.gather(*map(_check_health, self._providers.values()))
        view = self._core.view
        # Also holds jobs whose start is tentative, which have no attempt yet.
        waiting = Counter(
            view.attempts[key].provider
            for key in view.external_queues.waiting
            if key in view.attempts
        )
        live = Counter(attempt.provider for attempt in view.attempts.values())
        return [
            {
                "name": name,
                **health,
                "waiting": waiting[name],
                "running": live[name] - waiting[name],
                "quarantine": view.external_queues.trust.quarantined.get(name),
                **self._health.rates(name),
            }
            for name, health in zip(self._providers, healths, strict=True)
        ]

    def _mark_unreachable(self, name: str, error: Exception) -> None:
        why = str(error) or type(error).__name__
        problem = f"does not answer: {why}"
        if isinstance(error, ProviderError) and error.error_code not in TRANSIENT:
            problem = f"cannot be used: {why}"
        self._health.checked(name, why)
        queue = self._core.view.external_queues.by_name[name]
        is_news = not queue.problem
        queue.problem = problem
        attempts = self._core.view.attempts.values()
        self._unknown.queue_is_away(
            attempt.id for attempt in attempts if attempt.provider == name
        )
        self._note_containers(name, available=False)
        if is_news:
            log.warning("a provider does not answer", provider=name, error=why)
            self._core.schedule()
        self._requests.capacity.heard_from(name)

    def _note_containers(self, name: str, *, available: bool) -> None:
        """Note whether the provider can run containers on our nodes now."""
        view = self._core.view
        view.revision += 1
        nodes = self._providers[name].containers_on
        if nodes and (nodes in view.external_queues.containers) != available:
            view.set_container_provider(nodes, name if available else "")

    async def _poll(self, name: str, provider: GpuProviderInterface) -> None:
        """Poll all attempts of one provider, and its offers from time to time."""
        view = self._core.view
        offers_read_at = self._offers_read_at.get(name, -math.inf)
        offers_are_due = time.monotonic() - offers_read_at >= provider.offers_s
        if offers_are_due or view.external_queues.by_name[name].problem:
            await self._refresh_offers(name, provider)
        attempts = [
            attempt for attempt in view.attempts.values() if attempt.provider == name
        ]
        unsubmitted: list[LiveAttempt] = []
        for attempt in attempts:
            if attempt.id in self._launching.under_way:
                doing = provider.doing.get(attempt.id, "it is being submitted")
                view.external_queues.reasons[attempt.id] = doing
            elif attempt.provider_ref is None:
                unsubmitted.append(attempt)
        if due := self._due_for_search(unsubmitted, provider.poll_s):
            await self._find_or_submit(due)
        to_poll = {
            attempt.provider_ref: attempt
            for attempt in attempts
            if attempt.provider_ref and attempt.id not in self._finishing
        }
        if not to_poll:
            return
        asked_at = self._observed_runs.now()
        results = await _answers(provider, list(to_poll))
        changed = False
        for reference, attempt in to_poll.items():
            self._searches.pop(attempt.id, None)
            current = self._core.view.attempts.get(attempt.id)
            if current is not None:
                answer = results.get(reference)
                changed |= self._apply_answer(current, answer, asked_at)
        if changed:
            self._core.schedule()

    async def _refresh_offers(self, name: str, provider: GpuProviderInterface) -> None:
        found = await provider.offers()
        self._offers_read_at[name] = time.monotonic()
        queue = self._core.view.external_queues.by_name[name]
        billing = self._core.settings.billing
        offers = {
            offer.id: replace(offer, rate=billing.rate(offer.currency))
            for offer in found
        }
        if queue.problem or queue.offers != offers:
            queue.problem = ""
            queue.offers = offers
            self._read_history(name)
            self._note_containers(name, available=True)
            self._core.schedule()
        self._requests.capacity.heard_from(name)

    def _read_history(self, name: str) -> None:
        """Learn from past attempts there, once its offers are known."""
        if name in self._history_read:
            return
        self._history_read.add(name)
        view = self._core.view
        rows = self._core.queries.newest_ended(_HISTORY, name)
        for row in reversed(rows):
            job_type = view.learning.type_of(row["name"] or "", row["labels"] or {})
            note_ended_attempt(view, job_type, row)
        references = [row["provider_ref"] for row in rows[:_FORGOTTEN]]
        self._core.spawn(self._forget_ended(name, references), "forget-ended")

    async def _forget_ended(self, name: str, references: list[str | None]) -> None:
        """Let the provider forget ended jobs: a killed server may not have done so."""
        provider = self._providers[name]
        for reference in references:
            if reference:
                with suppress(ProviderError, OSError, TimeoutError):
                    await provider.forget_job(reference)

    # --- submissions whose reply was lost ---

    def _due_for_search(
        self, attempts: Sequence[LiveAttempt], first_pause_s: float
    ) -> list[LiveAttempt]:
        """Those that are to be looked for now. A provider may refuse them again and
        again, so each is looked for less and less often.
        """
        now = time.monotonic()
        live = self._core.view.attempts
        self._searches = {
            key: search for key, search in self._searches.items() if key in live
        }
        due: list[LiveAttempt] = []
        for attempt in attempts:
            pause_s, at = self._searches.get(attempt.id, (first_pause_s, now))
            if at <= now:
                next_pause_s = min(2 * pause_s, _LONGEST_SEARCH_PAUSE_S)
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

    # --- answers ---

    def _apply_answer(
        self, attempt: LiveAttempt, result: JobResult | None, asked_at: float
    ) -> bool:
        """Apply one answer; returns True if a decision is needed. `asked_at` is a time
        of the boot clock.
        """
        if result is None or result.status is JobStatus.UNKNOWN:
            return self._attempt_unknown(attempt, result)
        self._unknown.known(attempt.id)
        if result.status not in (JobStatus.PENDING, JobStatus.RUNNING):
            self._finish_soon(attempt, result)
            return False
        if attempt.state is AttemptState.ENDING:
            self._stop_repeatedly(attempt)
        if result.status is JobStatus.RUNNING:
            return self._attempt_running(attempt, result, asked_at)
        self._observed_runs.waits(attempt.id, asked_at)
        self._attempt_pending(attempt, result)
        return False

    def _attempt_pending(self, attempt: LiveAttempt, result: JobResult) -> None:
        reason = result.error_message or result.reason
        self._core.view.external_queues.reasons[attempt.id] = reason
        if attempt.state is AttemptState.SENT:
            pending = transitions.pending(attempt, self._core.clock())
            self._core.emit([pending], can_wait=True)

    def _attempt_running(
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
            self._log_mirror.follow(attempt)
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

    def _attempt_unknown(self, attempt: LiveAttempt, result: JobResult | None) -> bool:
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
                self._log_mirror.keep(attempt, result.logs or "")
                kept, problem = True, ""
            else:
                kept, problem = await self._log_mirror.finish(attempt)
            message = result.error_message or problem or None
            self._record_end(attempt.id, replace(result, error_message=message))
            await core.committed()
            provider = self._providers[attempt.provider]
            if kept and attempt.provider_ref:
                with suppress(ProviderError, OSError, TimeoutError):
                    await provider.forget_job(attempt.provider_ref)
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
        if result.reason == Reason.REVOKED and not is_ending:
            # The provider found no place for it and gave up.
            core.view.external_queues.note_no_capacity(attempt.offer, core.clock())
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
        if result.reason in _OUR_REASONS and not is_over_budget:
            return result.reason
        # An attempt that completed before the stop reached it counts as completed.
        if is_ending and result.status is not JobStatus.COMPLETED:
            return self._requests.why_ending(attempt)
        return ""

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


async def _answers(
    provider: GpuProviderInterface, references: Sequence[str]
) -> Mapping[str, JobResult]:
    """The state of each attempt. One whose answer cannot be read is UNKNOWN, and hides
    no other.
    """
    try:
        return await provider.poll_jobs(references)
    except (ProviderError, OSError, TimeoutError):
        raise
    except Exception as error:
        results: dict[str, JobResult] = {}
        bad: list[str] = []
        for reference in references:
            try:
                results |= await provider.poll_jobs([reference])
            except (ProviderError, OSError, TimeoutError):
                raise
            except Exception as fault:  # noqa: BLE001  it may be any fault of its answer
                message = f"its state cannot be read: {type(fault).__name__}: {fault}"
                results[reference] = JobResult(
                    reference, JobStatus.UNKNOWN, error_message=message
                )
                bad.append(reference)
        if len(bad) == len(references):
            raise  # not the jobs are at fault, but the provider
        log.warning("the state of some jobs cannot be read", jobs=bad, error=str(error))
        return results


async def _check_health(provider: GpuProviderInterface) -> dict[str, Any]:
    """The health of the provider, with a timeout so that it cannot delay the others."""
    try:
        return await asyncio.wait_for(provider.health_check(), _HEALTH_TIMEOUT_S)
    except TimeoutError:
        return {
            "status": "unhealthy",
            "message": f"it did not answer within {_HEALTH_TIMEOUT_S:g} s",
        }
