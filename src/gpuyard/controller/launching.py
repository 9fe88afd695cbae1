"""Launching: intents that are in the ledger go to their provider, and never before."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import structlog

from gpuyard.controller import moves
from gpuyard.controller.core import Core
from gpuyard.controller.health import Healths
from gpuyard.controller.render import render
from gpuyard.domain.errors import InsufficientResourcesError, LedgerError, ProviderError
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.states import AttemptState
from gpuyard.providers.base import TRANSIENT, GpuProviderInterface, OwnsNodes, Queues
from gpuyard.scheduler.claims import is_open
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.observe import REVOKED, UNREACHABLE
from gpuyard.scheduler.policy import backoff_s
from gpuyard.scheduler.view import LiveAttempt
from gpuyard.storage.blobs import BucketError

# A claim is meant to wait for some hundredths of a second.
_CLAIM_S = 2.0
log = structlog.get_logger(__name__)


class Launching:
    """Hands attempts to providers."""

    def __init__(
        self, core: Core, providers: Mapping[str, GpuProviderInterface], health: Healths, workspaces: Path
    ) -> None:
        """`workspaces`: the folder that holds them on this host."""
        self._core = core
        self._workspaces = workspaces
        self._health = health
        self._providers = providers
        self._claims: asyncio.TimerHandle | None = None
        self._limits: dict[str, asyncio.Semaphore] = {}
        # Attempts whose submission has not been answered.
        self.under_way: set[str] = set()

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
        specs = self._core.queries.spec_texts({attempts[i].job_id for i in attempt_ids if i in attempts})
        for attempt_id in attempt_ids:
            # Looked up anew: while the one before it was submitted, this one may have been cancelled.
            attempt = self._core.view.attempts.get(attempt_id)
            if attempt is None or not _startable(attempt) or attempt.job_id not in specs:
                continue
            provider, spec = self._providers.get(attempt.provider), _read_spec(specs[attempt.job_id])
            if provider is None:
                continue  # the settings have it no more
            if isinstance(provider, Queues):
                self._submit_beside(attempt, spec, provider)
            else:
                await self._submit(attempt, spec)
        self._watch_claims()

    def _submit_beside(self, attempt: LiveAttempt, spec: JobSpec, provider: Queues) -> None:
        """An engine takes its time to answer, and several questions at once."""
        if attempt.id in self.under_way:
            return
        self.under_way.add(attempt.id)
        limit = self._limits.setdefault(attempt.provider, asyncio.Semaphore(provider.concurrency))

        async def submit() -> None:
            try:
                async with limit:
                    current = self._core.view.attempts.get(attempt.id)
                    if current and _startable(current):
                        await self._submit(current, spec)
            finally:
                self.under_way.discard(attempt.id)

        self._core.spawn(submit(), "submit")

    async def _submit(self, attempt: LiveAttempt, spec: JobSpec) -> None:
        core = self._core
        job = core.view.jobs[attempt.job_id]
        checkpoint = self._checkpoint(attempt.job_id, job.resume_from)
        try:
            config = render(spec, job.shape, attempt, checkpoint, self._workspaces)
            reference = await self._providers[attempt.provider].submit_job(config)
        except InsufficientResourcesError as error:
            self._had_nothing(attempt, error)
            return
        except ProviderError as error:
            # It may have arrived or not: the intent stands, and is sent again when the node's agent says Hello, or
            # once its engine has been asked for it.
            if error.error_code not in TRANSIENT:
                reason = "bad_resume" if error.error_code == "BAD_RESUME" else "submit_failed"
                self._not_taken(attempt, reason, str(error))
            return
        except BucketError as error:
            self._not_taken(attempt, UNREACHABLE, str(error))
            return
        except Exception as error:
            log.exception("a submission failed", provider=attempt.provider, attempt=attempt.id)
            self._not_taken(attempt, "submit_failed", f"{attempt.provider}: {type(error).__name__}: {error}")
            return
        current = core.view.attempts.get(attempt.id)
        news = reference != attempt.provider_ref or checkpoint
        if news and current and current.state is AttemptState.INTENDED:
            resumed_from = checkpoint["id"] if checkpoint else None
            core.emit([moves.sent(current, reference, resumed_from, core.clock())], linger=True)
            if core.view.engines.missed:
                core.schedule()  # room came here while it was on its way

    def _not_taken(self, attempt: LiveAttempt, reason: str, message: str) -> None:
        self.settle(attempt, moves.Outcome(self._core.clock(), reason=reason, message=message))
        self._core.schedule()

    def _had_nothing(self, attempt: LiveAttempt, error: InsufficientResourcesError) -> None:
        """What was offered is gone: the job goes back into the line, and this offer is left alone for a while."""
        core = self._core
        if attempt.offer:
            core.view.engines.had_nothing(attempt.offer, core.clock())
            self.settle(attempt, moves.Outcome(core.clock(), stopped=REVOKED, message=str(error)))
        else:
            self.settle(attempt, moves.Outcome(core.clock(), reason="submit_failed", message=str(error)))
        core.schedule()

    def _checkpoint(self, job_id: str, wanted: str | None) -> dict[str, Any] | None:
        """The checkpoint row to resume from: the newest kept one, or the one named."""
        if wanted is None:
            return None
        if wanted != moves.NEWEST:
            return self._core.queries.checkpoint(wanted)
        kept = [row for row in self._core.queries.checkpoints_of(job_id) if row["kept"]]
        return kept[-1] if kept else None

    def settle(self, attempt: LiveAttempt, outcome: moves.Outcome, successor: str = "") -> None:
        """Record the end of an attempt and what follows for its job; the caller decides anew.

        `successor`: the attempt that its node has given its place to.
        """
        core = self._core
        job, current = core.view.jobs.get(attempt.job_id), core.view.attempts.get(attempt.id)
        if job is None or current is None:
            return
        not_before = None
        if moves.wants_retry(job, outcome):
            ours = outcome.stopped in moves.NOT_ITS_FAULT
            tries = job.attempts if outcome.reason == UNREACHABLE else job.failures + 1
            not_before = core.clock() + (0.0 if ours else backoff_s(core.policy, tries))
        heirs = self._heirs(job, current, outcome, successor)
        self._health.ended(job, current, outcome)
        core.emit([moves.ended(job, current, outcome, moves.Retry(not_before), heirs)], linger=True)
        core.progress.pop(job.id, None)
        core.pids.pop(job.id, None)
        heirs.pop(successor, None)
        if heirs:
            self.launch_soon(list(heirs))

    def _heirs(
        self, job: LiveJob, attempt: LiveAttempt, outcome: moves.Outcome, successor: str
    ) -> dict[str, moves.Places]:
        """Who has the place of an attempt that is over: whom its node says, or else the first that was sent ahead.

        The node may name one that was given another place meanwhile, because its window had seemed to be empty: the
        node is right, and that other place is the free one.
        """
        view, free = self._core.view, attempt.placements
        heirs: dict[str, moves.Places] = {}
        named = view.attempts.get(successor)
        if named:
            heirs[successor], free = free, named.placements
        node = view.nodes.get(attempt.node_id)
        if (
            node is not None
            and is_open(node, job.shape)
            and outcome.stopped != "preempted"
            and not any(share.ahead for share in free)
        ):
            site = view.sites.of(job.shape).get(attempt.node_id)
            waiting = [i for i in (site.ahead if site else ()) if i != successor and _startable(view.attempts[i])]
            if waiting:
                heirs[waiting[0]] = free
        return heirs

    def _watch_claims(self) -> None:
        if self._core.view.sites.ahead and self._claims is None:
            self._claims = asyncio.get_running_loop().call_later(_CLAIM_S, self._revoke)

    def _revoke(self) -> None:
        """Take back what was sent ahead and has waited too long: the jobs before it are not as short as they were."""
        self._claims = None
        view, now = self._core.view, self._core.clock()
        for attempt_id in list(view.sites.ahead):
            attempt = view.attempts[attempt_id]
            if _startable(attempt) and now - attempt.created_at > _CLAIM_S:
                view.sites.forget(view.jobs[attempt.job_id].shape)
                self._core.spawn(self._take_back(attempt), "take-back")
        self._watch_claims()

    def heed_quarantines(self) -> None:
        """Take back what was sent ahead to where nothing of its kind is to be started any more."""
        view = self._core.view
        for attempt in [view.attempts[key] for key in view.sites.ahead]:
            if _startable(attempt) and not is_open(view.node(attempt.node_id), view.jobs[attempt.job_id].shape):
                self._core.spawn(self._take_back(attempt), "take-back")

    async def _take_back(self, attempt: LiveAttempt) -> None:
        provider = self._providers[attempt.provider]
        if isinstance(provider, OwnsNodes):
            with suppress(ProviderError):  # not connected: the node has lost its window with the link
                await provider.stop_attempt(attempt.node_id, attempt.id, REVOKED, checkpoint=False)


def _startable(attempt: LiveAttempt) -> bool:
    return attempt.state in (AttemptState.INTENDED, AttemptState.SENT)


@lru_cache(maxsize=64)
def _read_spec(text: str) -> JobSpec:
    """A spec as the ledger holds it; it was validated before it came there. The jobs of a batch share theirs.

    One takes 8 kB: of jobs that share nothing, few are to be kept.
    """
    return JobSpec.model_validate_json(text)
