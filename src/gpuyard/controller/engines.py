"""Engines: attempts that run where no agent of ours is. Each provider that queues is asked in turns how they are.

What it says becomes the same moves as an agent's reports. A provider that does not answer has lost nothing: its
attempts stand as they are, nothing new is sent there, and it is asked again.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import structlog

from gpuyard.controller import moves
from gpuyard.controller.core import Core
from gpuyard.controller.health import Healths
from gpuyard.controller.launching import Launching
from gpuyard.controller.mirror import Mirrors
from gpuyard.controller.requests import Requests
from gpuyard.domain.errors import LedgerError, ProviderError
from gpuyard.domain.jobconfig import JobResult, JobStatus
from gpuyard.domain.states import AttemptState
from gpuyard.providers.base import FindsAttempts, GpuProviderInterface, Queues
from gpuyard.scheduler.engines import Engine
from gpuyard.scheduler.observe import PREEMPTED, REVOKED, remember
from gpuyard.scheduler.view import LiveAttempt

_OFFERS_S = 60.0
# So many of an engine's newest attempts are read again when a server starts.
_REMEMBERED = 500
_TIDIED = 32
_HEALTH_S = 15.0
_STRANGERS_S = 2.0
_TELL_S = 20.0
"""One that is to end and still lives is told again after so long: the first word may have been lost."""
_SLOWEST = 32
"""A provider in trouble is asked so many times less often at the most."""
_UNKNOWN_AFTER_S = 30.0
"""An engine may not know a job for a moment after it came or went; one that it does not know for this long is lost."""
_LOST = frozenset({"node_lost", "exit_status_lost", "attempt_lost"})
_OUR_STOPS = frozenset({"timed_out", "cancelled", PREEMPTED, REVOKED})
log = structlog.get_logger(__name__)


class Engines:
    """The providers that queue, and their attempts."""

    def __init__(
        self,
        core: Core,
        launching: Launching,
        requests: Requests,
        providers: Mapping[str, GpuProviderInterface],
        mirrors: Mirrors,
        health: Healths,
        containers: Mapping[str, str],
    ) -> None:
        """`containers`: by provider of nodes, the one that runs containers on them."""
        self._containers = containers
        self._core = core
        self._launching = launching
        self._requests = requests
        self._providers = providers
        self._mirrors = mirrors
        self._health = health
        self._told: dict[str, float] = {}
        self._settling: set[str] = set()
        self._missing: dict[str, float] = {}
        self._offered_at: dict[str, float] = {}
        self._remembered: set[str] = set()

    def start(self) -> None:
        """Begin to ask. Until a provider has answered nothing is sent there."""
        if self._strangers():
            self._core.spawn(self._tend_strangers(), "strangers")
        for name, provider in self._providers.items():
            if isinstance(provider, Queues):
                engine = Engine(name, provider.max_pending, problem="has not answered yet")
                self._core.view.meet({name: engine})
                self._core.spawn(self._tend(name, provider), f"engine-{name}")

    def _strangers(self) -> list[LiveAttempt]:
        """Attempts of providers that the settings have no more: nobody can ask after them."""
        return [a for a in self._core.view.attempts.values() if a.provider not in self._providers]

    async def _tend_strangers(self) -> None:
        """Say so to whoever asks why; and when one is cancelled, that is all that can be done."""
        while strangers := self._strangers():
            for attempt in strangers:
                message = f"provider {attempt.provider} is not configured any more"
                self._core.view.engines.reasons[attempt.id] = message
                if attempt.state is AttemptState.ENDING:
                    outcome = moves.Outcome(self._core.clock(), attempt.started_at, reason="attempt_lost", lost=True,
                                            stopped=self._requests.why_ending(attempt), message=message)  # fmt: skip
                    self._launching.settle(attempt, outcome)
                    self._core.schedule()
            await asyncio.sleep(_STRANGERS_S)

    async def _tend(self, name: str, provider: Queues) -> None:
        trouble = 0
        while True:
            try:
                await self._look(name, provider)
                self._health.checked(name)
                trouble = 0
            except (ProviderError, OSError, TimeoutError) as error:
                trouble += 1
                self._is_away(name, str(error) or type(error).__name__)
            except LedgerError:
                pass  # memory has been read anew; so is the engine with the next look
            except Exception as error:
                trouble += 1
                log.exception("looking after a provider's jobs failed, will try again", provider=name)
                self._is_away(name, f"{type(error).__name__}: {error}")
            await asyncio.sleep(provider.poll_s * min(1 << trouble, _SLOWEST))

    async def listing(self) -> list[dict[str, Any]]:
        """Every provider, its health, and how many attempts wait and run there."""
        found = await asyncio.gather(*map(_health, self._providers.values()))
        view = self._core.view
        waiting = Counter(view.attempts[key].provider for key in view.engines.waiting if key in view.attempts)
        live = Counter(attempt.provider for attempt in view.attempts.values())
        return [{"name": name, **health, "waiting": waiting[name], "running": live[name] - waiting[name],
                 "quarantine": view.engines.trust.quarantined.get(name), **self._health.rates(name)}
                for name, health in zip(self._providers, found, strict=True)]  # fmt: skip

    def _is_away(self, name: str, why: str) -> None:
        self._health.checked(name, why)
        engine = self._core.view.engines.known[name]
        is_news = not engine.problem
        engine.problem = f"does not answer: {why}"
        self._carries(name, well=False)
        if is_news:
            log.warning("a provider does not answer", provider=name, error=why)
            self._core.schedule()

    def _carries(self, name: str, *, well: bool) -> None:
        """The provider runs containers on our nodes, or cannot at the moment."""
        view = self._core.view
        view.revision += 1
        for nodes, carrier in self._containers.items():
            if carrier == name and (nodes in view.engines.containers) != well:
                view.carry(nodes, carrier if well else "")

    async def _look(self, name: str, provider: Queues) -> None:
        """One look at everything of one provider's."""
        view = self._core.view
        if time.monotonic() - self._offered_at.get(name, -_OFFERS_S) >= _OFFERS_S or view.engines.known[name].problem:
            await self._hear_offers(name, provider)
        mine = [attempt for attempt in view.attempts.values() if attempt.provider == name]
        for attempt in mine:
            if attempt.id in self._launching.under_way:
                view.engines.reasons[attempt.id] = provider.doing.get(attempt.id, "it is being submitted")
            elif attempt.provider_ref is None:
                await self._recover(attempt)
        live = {a.provider_ref: a for a in mine if a.provider_ref and a.id not in self._settling}
        if not live:
            return
        results = await provider.poll_jobs(list(live))
        changed = False
        for reference, attempt in live.items():
            current = self._core.view.attempts.get(attempt.id)
            if current is not None:
                changed |= self._learn(current, results.get(reference))
        if changed:
            self._core.schedule()

    async def _hear_offers(self, name: str, provider: Queues) -> None:
        offers = await provider.offers()
        self._offered_at[name] = time.monotonic()
        engine = self._core.view.engines.known[name]
        billing = self._core.settings.billing
        news = {offer.id: replace(offer, rate=billing.rate(offer.currency)) for offer in offers}
        if engine.problem or engine.offers != news:
            engine.problem, engine.offers = "", news
            self._remember(name)
            self._carries(name, well=True)
            self._requests.joined.set()
            self._core.schedule()

    def _remember(self, name: str) -> None:
        """Know again how attempts fared there: once, as soon as it is known what its offers are."""
        if name in self._remembered:
            return
        self._remembered.add(name)
        view = self._core.view
        rows = self._core.queries.newest_ended(_REMEMBERED, name)
        for row in reversed(rows):
            remember(view, view.learning.type_of(row["name"] or "", row["labels"] or {}), row)
        self._core.spawn(
            self._tidy(name, [row["provider_ref"] for row in rows[:_TIDIED] if row["provider_ref"]]), "tidy"
        )

    async def _tidy(self, name: str, references: list[str]) -> None:
        """What is settled and was not forgotten, because the server before was killed, may go now."""
        provider = self._providers[name]
        if not isinstance(provider, Queues):
            return
        for reference in references:
            with suppress(ProviderError, OSError, TimeoutError):
                await provider.forget_job(reference)

    # --- attempts of which it is not known whether they arrived ---

    async def _recover(self, attempt: LiveAttempt) -> None:
        """The server before was killed, or the answer was lost: look whether it is there before it is sent again."""
        provider = self._providers[attempt.provider]
        found = await provider.find_by_attempt(attempt.id) if isinstance(provider, FindsAttempts) else None
        current = self._core.view.attempts.get(attempt.id)
        if current is None or current.provider_ref is not None or attempt.id in self._launching.under_way:
            return  # while it was asked, somebody has begun to submit it
        if found is not None:
            self._core.emit([moves.found(current, found, self._core.clock())])
        elif current.state is AttemptState.ENDING:
            outcome = moves.Outcome(self._core.clock(), stopped=self._requests.why_ending(current))
            self._launching.settle(current, outcome)
            self._core.schedule()
        else:
            await self._launching.launch([current.id])

    # --- what a provider says ---

    def _learn(self, attempt: LiveAttempt, result: JobResult | None) -> bool:
        """Take one answer in; True when a decision may follow from it."""
        if result is None or result.status is JobStatus.UNKNOWN:
            return self._misses(attempt, result)
        self._missing.pop(attempt.id, None)
        if result.status not in (JobStatus.PENDING, JobStatus.RUNNING):
            self._settling.add(attempt.id)
            self._core.spawn(self._settle(attempt, result), "settle")
            return False
        if attempt.state is AttemptState.ENDING and time.monotonic() - self._told.get(attempt.id, -_TELL_S) >= _TELL_S:
            self._told[attempt.id] = time.monotonic()
            self._core.spawn(self._tell_again(attempt), "stop")
        return self._runs(attempt, result) if result.status is JobStatus.RUNNING else self._waits(attempt, result)

    def _waits(self, attempt: LiveAttempt, result: JobResult) -> bool:
        self._core.view.engines.reasons[attempt.id] = result.error_message or result.reason
        if attempt.state is AttemptState.SENT:
            self._core.emit([moves.pending(attempt, self._core.clock())], linger=True)
        return False

    def _runs(self, attempt: LiveAttempt, result: JobResult) -> bool:
        is_news = attempt.started_at is None
        if is_news:
            self._begins(attempt, result)
        self._mirrors.follow(attempt)
        return is_news

    def _begins(self, attempt: LiveAttempt, result: JobResult) -> None:
        """It runs; on an engine's own nodes where that says."""
        core = self._core
        places = tuple(replace(share, node_id=result.node, gpu_uuids=result.gpus) for share in attempt.placements)
        at = result.started_at or core.clock()
        job = core.view.jobs[attempt.job_id]
        core.emit([moves.started(job, attempt, at, {}, places if attempt.offer else None)], linger=True)

    def _misses(self, attempt: LiveAttempt, result: JobResult | None) -> bool:
        """The engine does not know the attempt: right after it came or went that means nothing yet."""
        since = self._missing.setdefault(attempt.id, time.monotonic())
        if time.monotonic() - since < _UNKNOWN_AFTER_S:
            return False
        del self._missing[attempt.id]
        said = result.error_message if result else None
        message = said or f"{attempt.provider} no longer knows this attempt ({attempt.provider_ref})"
        lost = JobResult(attempt.provider_ref or "", JobStatus.FAILED, reason="attempt_lost", error_message=message)
        self._settling.add(attempt.id)
        self._core.spawn(self._settle(attempt, lost), "settle")
        return False

    async def _settle(self, attempt: LiveAttempt, result: JobResult) -> None:
        """The attempt is over: bring in what it left, record its end, then let the provider forget it."""
        core = self._core
        try:
            kept, missing = await self._mirrors.finish(attempt)
            result = replace(result, error_message=result.error_message or missing or None)
            current = core.view.attempts.get(attempt.id)
            if current is not None and current.started_at is None and result.started_at is not None:
                self._begins(current, result)  # it came and went between two looks
            current = core.view.attempts.get(attempt.id)
            if current is not None:
                if result.reason == REVOKED and current.state is not AttemptState.ENDING:
                    core.view.engines.had_nothing(current.offer, core.clock())  # the provider gave up on a place for it
                self._launching.settle(current, self._outcome(current, result))
                core.schedule()
            await core.committed()
            provider = self._providers[attempt.provider]
            if kept and isinstance(provider, Queues) and attempt.provider_ref:
                with suppress(ProviderError, OSError, TimeoutError):
                    await provider.forget_job(attempt.provider_ref)
        except LedgerError:
            return  # memory has been read anew; the next look finds the same end
        finally:
            self._settling.discard(attempt.id)
            self._told.pop(attempt.id, None)

    def _outcome(self, attempt: LiveAttempt, result: JobResult) -> moves.Outcome:
        """A provider's words as an agent's: who ended it tells whether it is tried again."""
        stopped = result.reason if result.reason in _OUR_STOPS else ""
        clean = result.status is JobStatus.COMPLETED  # it did before it was told, and what is done is done
        if result.status is JobStatus.CANCELLED or (attempt.state is AttemptState.ENDING and not stopped and not clean):
            # Nobody here asked for that: somebody took it off the engine, so it goes back into the line.
            stopped = self._requests.why_ending(attempt) if attempt.state is AttemptState.ENDING else PREEMPTED
        began = result.started_at or attempt.started_at
        at = max(result.completed_at or self._core.clock(), began or 0.0)
        reason = "" if stopped or result.status is JobStatus.COMPLETED else result.reason
        code = result.exit_code
        number = -code if code is not None and code < 0 else None
        return moves.Outcome(
            at, began, code if number is None else None, number, reason=reason, stopped=stopped,
            message=result.error_message or "", usage=result.usage, lost=reason in _LOST,
        )  # fmt: skip

    async def _tell_again(self, attempt: LiveAttempt) -> None:
        """It is to end, and whoever wanted that may have been killed before the provider heard of it."""
        try:
            await self._requests.stop(attempt, self._requests.why_ending(attempt))
        except ProviderError as error:
            log.warning("a provider could not end an attempt, will try again", attempt=attempt.id, error=str(error))
            self._told.pop(attempt.id, None)


async def _health(provider: GpuProviderInterface) -> dict[str, Any]:
    """One that does not answer holds the others up for some seconds at the most."""
    try:
        return await asyncio.wait_for(provider.health_check(), _HEALTH_S)
    except TimeoutError:
        return {"status": "unhealthy", "message": f"it did not answer within {_HEALTH_S:g} s"}
