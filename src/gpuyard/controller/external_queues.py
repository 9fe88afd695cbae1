"""External queues: providers that place jobs themselves, such as Slurm and Kubernetes.

Their nodes have no agent, so each provider is polled; its answers become the same
transitions as the reports of an agent (`external_answers.py`). While a provider does
not answer, its attempts stay as they are, nothing new is sent there, and it is polled
again later.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from gpuyard.controller.attempt_outcome import AttemptOutcome
from gpuyard.controller.copied_logs import CopiedLogs
from gpuyard.controller.core import Core
from gpuyard.controller.external_answers import ExternalAnswers
from gpuyard.controller.health import ProviderHealth
from gpuyard.controller.kept_answers import KeptAnswer, KeptAnswers
from gpuyard.controller.launching import Launching
from gpuyard.controller.leftovers import Leftovers
from gpuyard.controller.lost_submissions import LostSubmissions
from gpuyard.controller.observed_runs import ObservedRuns
from gpuyard.controller.requests import Requests
from gpuyard.domain.errors import LedgerError, ProviderError
from gpuyard.domain.jobconfig import JobResult, JobStatus
from gpuyard.domain.reasons import Reason
from gpuyard.domain.states import AttemptState
from gpuyard.providers.base import TRANSIENT, GpuProviderInterface
from gpuyard.providers.configured import Providers
from gpuyard.scheduler.attempts import LiveAttempt
from gpuyard.scheduler.external_queues import ExternalQueue
from gpuyard.scheduler.observe import note_ended_attempt

_HEALTH_TIMEOUT_S = 15.0
_HEALTH_PATIENCE_S = 5.0
_HEALTH_KEPT_S = 2.0
_WITHOUT_PROVIDER_EVERY_S = 2.0
_HISTORY = 500
"""When a server starts, it learns from this many of a provider's newest attempts."""
_FORGOTTEN = 32
"""How many of those the provider is asked to forget."""
_MAX_SLOWDOWN = 32
"""A provider that fails is polled at most this many times less often."""
log = structlog.get_logger(__name__)


class ExternalQueues:
    """Polls the external queues, and records what becomes of their attempts."""

    def __init__(
        self,
        core: Core,
        launching: Launching,
        requests: Requests,
        providers: Providers,
        copied_logs: CopiedLogs,
        health: ProviderHealth,
        observed_runs: ObservedRuns,
    ) -> None:
        self._core = core
        self._launching = launching
        self._requests = requests
        self._providers = providers
        self.leftovers = Leftovers(core, providers, copied_logs)
        self._health = health
        self._observed_runs = observed_runs
        self._lost_submissions = LostSubmissions(core, launching, requests, providers)
        self._answers = ExternalAnswers(
            core,
            launching,
            requests,
            providers,
            copied_logs,
            observed_runs,
            self.leftovers,
        )
        self._healths = KeptAnswers(
            self._ask_health,
            keep_s=_HEALTH_KEPT_S,
            rest_s=_HEALTH_KEPT_S,
            patience_s=_HEALTH_PATIENCE_S,
            timeout_s=_HEALTH_TIMEOUT_S,
        )
        # When the offers of each provider were read last (monotonic seconds).
        self._offers_read_at: dict[str, float] = {}
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
        healths = await self._health_by_name()
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
            for name, health in healths.items()
        ]

    async def _health_by_name(self) -> dict[str, Mapping[str, Any]]:
        """Those that have agents know it without asking anybody."""
        others = await self._healths.look(self._providers.external_queues)
        return {
            name: _shown_health(others[name])
            if name in others
            else await provider.health_check()
            for name, provider in self._providers.items()
        }

    async def _ask_health(self, name: str) -> Mapping[str, Any]:
        return await self._providers[name].health_check()

    def _mark_unreachable(self, name: str, error: Exception) -> None:
        why = str(error) or type(error).__name__
        problem = f"does not answer: {why}"
        if isinstance(error, ProviderError) and error.error_code not in TRANSIENT:
            problem = f"cannot be used: {why}"
        self._health.checked(name, why)
        queue = self._core.view.external_queues.by_name[name]
        is_news = not queue.problem
        queue.problem = problem
        self._answers.queue_is_away(attempt.id for attempt in self._attempts_of(name))
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

    def _attempts_of(self, name: str) -> list[LiveAttempt]:
        attempts = self._core.view.attempts.values()
        return [attempt for attempt in attempts if attempt.provider == name]

    async def _poll(self, name: str, provider: GpuProviderInterface) -> None:
        """Poll all attempts of one provider, and its offers from time to time."""
        view = self._core.view
        offers_read_at = self._offers_read_at.get(name, -math.inf)
        offers_are_due = time.monotonic() - offers_read_at >= provider.offers_s
        if offers_are_due or view.external_queues.by_name[name].problem:
            await self._refresh_offers(name, provider)
        attempts = self._attempts_of(name)
        unsubmitted: list[LiveAttempt] = []
        for attempt in attempts:
            if attempt.id in self._launching.under_way:
                doing = provider.doing.get(attempt.id, "it is being submitted")
                view.external_queues.reasons[attempt.id] = doing
            elif attempt.provider_ref is None:
                unsubmitted.append(attempt)
        await self._lost_submissions.look_for(unsubmitted, provider.poll_s)
        await self._ask(provider, attempts)

    async def _ask(
        self, provider: GpuProviderInterface, attempts: Sequence[LiveAttempt]
    ) -> None:
        """Ask for the states of the attempts that were submitted, and record them."""
        to_poll = {
            attempt.provider_ref: attempt
            for attempt in attempts
            if attempt.provider_ref and not self._answers.is_finishing(attempt.id)
        }
        if not to_poll:
            return
        asked_at = self._observed_runs.now()
        results = await _answers(provider, list(to_poll))
        needs_decision = False
        for reference, attempt in to_poll.items():
            self._lost_submissions.found(attempt.id)
            current = self._core.view.attempts.get(attempt.id)
            if current is not None:
                answer = results.get(reference)
                needs_decision |= self._answers.apply(current, answer, asked_at)
        if needs_decision:
            self._core.schedule()

    async def _refresh_offers(self, name: str, provider: GpuProviderInterface) -> None:
        found = await provider.offers()
        self._offers_read_at[name] = time.monotonic()
        queue = self._core.view.external_queues.by_name[name]
        rates = self._core.settings.billing.exchange
        now = self._core.clock()
        offers = {
            offer.id: replace(offer, rate=rates.rate_at(offer.currency, now))
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
        newest = rows[:_FORGOTTEN]
        self._core.spawn(self.leftovers.forget_ended(name, newest), "forget-ended")


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


def _shown_health(health: KeptAnswer[Mapping[str, Any]]) -> Mapping[str, Any]:
    """What a provider says of its health, or why it says nothing."""
    if health.problem:
        return {"status": "unhealthy", "message": health.problem}
    return health.value or {}
