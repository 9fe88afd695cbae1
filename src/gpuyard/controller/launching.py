"""Launching: sends attempts to their providers, never before their intents are in the
ledger.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import structlog

from gpuyard.controller import transitions
from gpuyard.controller.attempt_order import WorkerToken, no_token, order_for
from gpuyard.controller.attempt_outcome import AttemptOutcome, Retry, wants_retry
from gpuyard.controller.core import Core
from gpuyard.controller.deadlines import ended_late
from gpuyard.controller.health import ProviderHealth
from gpuyard.controller.observed_runs import ObservedRuns
from gpuyard.controller.secrets import Secrets
from gpuyard.domain.arrays import task_spec
from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.datasets import DatasetMount
from gpuyard.domain.errors import (
    InsufficientResourcesError,
    LedgerError,
    ProviderError,
    RefusedError,
)
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.reasons import Reason, RetryRule
from gpuyard.domain.spec_values import STORED
from gpuyard.domain.states import AttemptState
from gpuyard.providers.base import TRANSIENT, GpuProviderInterface
from gpuyard.providers.configured import Providers
from gpuyard.scheduler.attempts import LiveAttempt
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.policy import backoff_s
from gpuyard.scheduler.prefetch import may_prefetch
from gpuyard.storage.blobs import BucketError
from gpuyard.storage.dataset_store import DatasetMissingError
from gpuyard.storage.secret_sources import SecretMissingError, SecretUnavailableError

# A prefetched attempt normally waits some hundredths of a second.
_LONGEST_PREFETCH_WAIT_S = 2.0
# What a provider refuses for ever, by its code; else it is a submission that failed.
_REASONS = {
    "BAD_RESUME": Reason.BAD_RESUME,
    "DATASET_MISSING": Reason.DATASET_MISSING,
    "DATASET_UNAVAILABLE": Reason.DATASET_UNAVAILABLE,
}
log = structlog.get_logger(__name__)


class Launching:
    """Submits attempts to providers, and records their ends."""

    def __init__(
        self,
        core: Core,
        providers: Providers,
        health: ProviderHealth,
        workspaces: Path,
        secrets: Secrets,
        observed_runs: ObservedRuns,
    ) -> None:
        """`workspaces`: the folder of this host that holds the workspaces."""
        self._core = core
        self._secrets = secrets
        self._workspaces = workspaces
        self._health = health
        self._observed_runs = observed_runs
        self._providers = providers
        self._prefetch_timer: asyncio.TimerHandle | None = None
        self._submission_limits: dict[str, asyncio.Semaphore] = {}
        # Makes the token of a worker: of its attempt with its fencing token, for its
        # batch. The server has the key.
        self.worker_token: WorkerToken = no_token
        # What a node needs to know of the datasets of a job; DatasetMissingError.
        self.dataset_mounts: Callable[[JobSpec], Sequence[DatasetMount]] = lambda _: ()
        # Brings the workspace of this key to this host; set if they are in a bucket.
        self.bring_workspace: Callable[[str], Awaitable[None]] | None = None
        self.after_end: Callable[[LiveJob], None] = lambda _: None
        # Attempts whose submission to an external queue has not been answered.
        self.under_way: set[str] = set()

    # --- submissions ---

    def launch_soon(self, attempt_ids: Sequence[str]) -> None:
        """Launch these attempts in the background."""
        # Asked for here and not in the task. So they are sent before anyone who asks
        # later for the same commit gets an answer.
        committed = self._core.committed()
        self._core.spawn(self._launch(list(attempt_ids), committed), "launch")

    async def launch(self, attempt_ids: Sequence[str]) -> None:
        """Submit these attempts once their intents are committed.

        To submit an attempt again is safe: a provider starts it only once. An attempt
        that runs, is being ended or has ended is left alone.
        """
        await self._launch(attempt_ids, self._core.committed())

    async def _launch(
        self, attempt_ids: Sequence[str], committed: asyncio.Future[None]
    ) -> None:
        try:
            await committed
        except LedgerError:
            # The intents are not in the ledger, and memory was read again without them.
            return
        attempts = self._core.view.attempts
        job_ids = {attempts[i].job_id for i in attempt_ids if i in attempts}
        specs = self._core.queries.spec_texts(job_ids)
        for attempt_id in attempt_ids:
            # The submission of the one before took time: this one may be cancelled now.
            attempt = self._core.view.attempts.get(attempt_id)
            if attempt is None or not _is_startable(attempt):
                continue
            spec = specs.get(attempt.job_id)
            if spec is not None:
                await self._submit_or_spawn(attempt, self._spec_of(attempt, spec))
        self._watch_prefetched()

    def _spec_of(self, attempt: LiveAttempt, text: str) -> JobSpec:
        """The spec of its job; `text` is that of its array, if the job is a task."""
        spec = _read_spec(text)
        index = self._core.view.jobs[attempt.job_id].array_index
        return spec if index is None else task_spec(spec, index)

    async def _submit_or_spawn(self, attempt: LiveAttempt, spec: JobSpec) -> None:
        provider = self._providers.get(attempt.provider)
        if provider is None:
            return  # it is no longer in the settings
        # A workspace may have to come first, and others must not wait for it.
        is_slow = spec.workspace is not None and self.bring_workspace is not None
        is_node = self._providers.node_provider(attempt.provider) is not None
        if is_node and not is_slow:
            await self._submit(attempt, spec)
        else:
            self._submit_in_background(attempt, spec, provider)

    def _submit_in_background(
        self, attempt: LiveAttempt, spec: JobSpec, provider: GpuProviderInterface
    ) -> None:
        """Submit to an external queue, which answers slowly but takes several
        submissions at once.
        """
        if attempt.id in self.under_way:
            return
        self.under_way.add(attempt.id)
        limit = self._submission_limits.setdefault(
            attempt.provider, asyncio.Semaphore(provider.concurrency)
        )

        async def submit() -> None:
            try:
                async with limit:
                    current = self._core.view.attempts.get(attempt.id)
                    if current and _is_startable(current):
                        if not provider.ends_with_server:
                            self._observed_runs.submits(attempt.id)
                        await self._submit(current, spec)
            finally:
                self.under_way.discard(attempt.id)

        self._core.spawn(submit(), "submit")

    async def _submit(self, attempt: LiveAttempt, spec: JobSpec) -> None:
        job = self._core.view.jobs[attempt.job_id]
        checkpoint = self._checkpoint(attempt.job_id, job.resume_from)
        try:
            if job.shape.workspace and self.bring_workspace:
                await self.bring_workspace(job.shape.workspace)
            order = await self._order(attempt, spec, checkpoint)
            reference = await self._providers[attempt.provider].submit_attempt(order)
        except SecretMissingError as error:
            self._end_unsubmitted(attempt, Reason.SECRET_MISSING, str(error))
        except DatasetMissingError as error:
            self._end_unsubmitted(attempt, Reason.DATASET_MISSING, str(error))
        except (SecretUnavailableError, RefusedError) as error:
            self._end_unsubmitted(attempt, Reason.SECRET_UNAVAILABLE, str(error))
        except InsufficientResourcesError as error:
            self._no_capacity(attempt, error)
        except ProviderError as error:
            self._provider_failed(attempt, error)
        except BucketError as error:
            self._end_unsubmitted(attempt, Reason.STORAGE_UNREACHABLE, str(error))
        except Exception as error:
            # A traceback in the log could show a secret.
            log.error(
                "a submission failed",
                provider=attempt.provider,
                attempt=attempt.id,
                exc_info=not spec.secrets,
            )
            message = f"{attempt.provider}: {type(error).__name__}: {error}"
            self._end_unsubmitted(attempt, Reason.SUBMIT_FAILED, message)
        else:
            self._accepted(attempt, reference, checkpoint)

    async def _order(
        self, attempt: LiveAttempt, spec: JobSpec, checkpoint: dict[str, Any] | None
    ) -> AttemptOrder:
        job = self._core.view.jobs[attempt.job_id]
        secrets = await self._secrets.values(attempt.id, spec)
        return order_for(
            spec,
            job.shape,
            attempt,
            checkpoint,
            self._workspaces,
            secrets,
            self.worker_token,
            job.array_index,
            self.dataset_mounts(spec),
        )

    async def order_again(self, attempt_id: str) -> AttemptOrder | None:
        """The order of an attempt that was submitted, for a machine that has come up
        only now; None if the attempt has ended. GpuyardError as for a submission.
        """
        core = self._core
        attempt = core.view.attempts.get(attempt_id)
        if attempt is None:
            return None
        texts = core.queries.spec_texts({attempt.job_id})
        rows = core.queries.attempts_of([attempt.job_id])[attempt.job_id]
        resumed_from = next(
            (row["resumed_from"] for row in rows if row["id"] == attempt_id), None
        )
        checkpoint = core.queries.checkpoint(resumed_from) if resumed_from else None
        spec = self._spec_of(attempt, texts[attempt.job_id])
        return await self._order(attempt, spec, checkpoint)

    def _accepted(
        self, attempt: LiveAttempt, reference: str, checkpoint: dict[str, Any] | None
    ) -> None:
        core = self._core
        current = core.view.attempts.get(attempt.id)
        is_news = reference != attempt.provider_ref or checkpoint is not None
        if not is_news or current is None:
            return
        if current.state is not AttemptState.INTENDED:
            return
        resumed_from = checkpoint["id"] if checkpoint else None
        core.emit(
            [transitions.sent(current, reference, resumed_from, core.clock())],
            can_wait=True,
        )
        if core.view.external_queues.recheck_waiting:
            # A place became free here while the attempt was on its way.
            core.schedule()

    def _provider_failed(self, attempt: LiveAttempt, error: ProviderError) -> None:
        if error.error_code in TRANSIENT:
            # Nobody knows whether the submission arrived, so the intent stays. It is
            # sent again when the agent of the node says Hello, or after the external
            # queue was asked for the attempt.
            queues = self._core.view.external_queues
            if attempt.provider in queues.by_name:
                queues.reasons[attempt.id] = str(error)
            return
        reason = _REASONS.get(error.error_code, Reason.SUBMIT_FAILED)
        self._end_unsubmitted(attempt, reason, str(error))

    def _no_capacity(
        self, attempt: LiveAttempt, error: InsufficientResourcesError
    ) -> None:
        """The offer has nothing left: queue the job again, and avoid the offer for a
        while.
        """
        core = self._core
        if not attempt.offer:
            self._end_unsubmitted(attempt, Reason.SUBMIT_FAILED, str(error))
            return
        core.view.external_queues.note_no_capacity(
            attempt.offer, core.clock(), str(error)
        )
        outcome = AttemptOutcome(
            core.clock(), stopped=Reason.REVOKED, message=str(error)
        )
        self.record_end(attempt, outcome)
        core.schedule()

    def _end_unsubmitted(self, attempt: LiveAttempt, reason: str, message: str) -> None:
        """End an attempt that its provider did not accept."""
        outcome = AttemptOutcome(self._core.clock(), reason=reason, message=message)
        self.record_end(attempt, outcome)
        self._core.schedule()

    def _checkpoint(
        self, job_id: str, resume_from: str | None
    ) -> dict[str, Any] | None:
        """The checkpoint row to resume from: the newest kept one, or the one named."""
        if resume_from is None:
            return None
        if resume_from != transitions.NEWEST:
            return self._core.queries.checkpoint(resume_from)
        kept = [row for row in self._core.queries.checkpoints_of(job_id) if row["kept"]]
        return kept[-1] if kept else None

    # --- ends ---

    def record_end(
        self, attempt: LiveAttempt, outcome: AttemptOutcome, prefetched_next: str = ""
    ) -> None:
        """Record the end of an attempt, and requeue or end its job.

        `prefetched_next`: the attempt to which the node has given the place. The caller
        must call `schedule` afterwards.
        """
        core = self._core
        job = core.view.jobs.get(attempt.job_id)
        current = core.view.attempts.get(attempt.id)
        if job is None or current is None:
            return
        message = self._secrets.hide(attempt.id, outcome.message)
        if message != outcome.message:
            outcome = replace(outcome, message=message)
        self._secrets.forget([attempt.id])
        if outcome.lost and outcome.ran_s is None:
            # Nobody was there at its end: the time until now is all that is known.
            outcome = replace(outcome, ran_s=core.run_clock.ran_s(attempt.id))
        retry = Retry(self._retry_at(job, outcome))
        takeovers = self._takeovers(job, current, outcome, prefetched_next)
        self._health.ended(job, current, outcome)
        ended = transitions.attempt_ended(job, current, outcome, retry, takeovers)
        is_over = retry.not_before is None
        missed = ended_late(core, job, outcome.at) if is_over else []
        core.emit([*missed, ended], can_wait=True)
        self.after_end(job)
        core.progress.pop(job.id, None)
        core.pids.pop(job.id, None)
        core.run_clock.forget(attempt.id)
        self._observed_runs.forget(attempt.id)
        takeovers.pop(prefetched_next, None)
        if takeovers:
            self.launch_soon(list(takeovers))

    def _retry_at(self, job: LiveJob, outcome: AttemptOutcome) -> float | None:
        """When the job may start again (UTC seconds); None for no retry."""
        if not wants_retry(job, outcome):
            return None
        now = self._core.clock()
        if Reason.of(outcome.stopped).retry is RetryRule.FREE:
            return now
        # An outage of the storage counts as no failure, but must delay the next try.
        is_outage = outcome.reason == Reason.STORAGE_UNREACHABLE
        tries = job.attempts if is_outage else job.failures + 1
        return now + backoff_s(self._core.policy, tries)

    def _takeovers(
        self,
        job: LiveJob,
        attempt: LiveAttempt,
        outcome: AttemptOutcome,
        prefetched_next: str,
    ) -> dict[str, transitions.Placements]:
        """Which prefetched attempts take over a place now that `attempt` has ended:
        the placements of each, by id.

        The node may name the attempt that took over (`prefetched_next`). If the server
        had already given that one another place, because it believed that the node had
        nothing left to wait for, then the node is right, and the other place is free. A
        free place goes to the prefetched attempt that has waited longest.
        """
        view = self._core.view
        free = attempt.placements
        takeovers: dict[str, transitions.Placements] = {}
        named = view.attempts.get(prefetched_next)
        # A node says so of its own attempts only.
        if named and named.node_id == attempt.node_id:
            takeovers[prefetched_next] = free
            free = named.placements
        if self._may_be_taken_over(job, attempt, outcome, free):
            site = view.prefetch_sites.by_node(job.shape).get(attempt.node_id)
            for attempt_id in site.waiting if site else ():
                if attempt_id != prefetched_next and _is_startable(
                    view.attempts[attempt_id]
                ):
                    takeovers[attempt_id] = free
                    break
        return takeovers

    def _may_be_taken_over(
        self,
        job: LiveJob,
        attempt: LiveAttempt,
        outcome: AttemptOutcome,
        placements: transitions.Placements,
    ) -> bool:
        node = self._core.view.nodes.get(attempt.node_id)
        if node is None or not may_prefetch(node, job.shape):
            return False
        if outcome.stopped == Reason.PREEMPTED:
            return False  # the place is for the job that needed it
        return not any(placement.prefetched for placement in placements)

    # --- prefetched attempts ---

    def _watch_prefetched(self) -> None:
        if self._core.view.prefetch_sites.waiting and self._prefetch_timer is None:
            self._prefetch_timer = asyncio.get_running_loop().call_later(
                _LONGEST_PREFETCH_WAIT_S, self._withdraw_overdue
            )

    def _withdraw_overdue(self) -> None:
        """Withdraw prefetched attempts that have waited too long: the jobs before them
        take longer than jobs of this shape did.
        """
        self._prefetch_timer = None
        view = self._core.view
        now = self._core.clock()
        for attempt_id in list(view.prefetch_sites.waiting):
            attempt = view.attempts[attempt_id]
            waited_s = now - attempt.created_at
            if _is_startable(attempt) and waited_s > _LONGEST_PREFETCH_WAIT_S:
                view.prefetch_sites.forget_duration(view.jobs[attempt.job_id].shape)
                self._core.spawn(self._withdraw(attempt), "withdraw")
        self._watch_prefetched()

    def withdraw_from_quarantine(self) -> None:
        """Withdraw prefetched attempts from nodes that get no more jobs of their
        shape.
        """
        view = self._core.view
        for attempt_id in view.prefetch_sites.waiting:
            attempt = view.attempts[attempt_id]
            shape = view.jobs[attempt.job_id].shape
            may_start_there = may_prefetch(view.node(attempt.node_id), shape)
            if _is_startable(attempt) and not may_start_there:
                self._core.spawn(self._withdraw(attempt), "withdraw")

    async def _withdraw(self, attempt: LiveAttempt) -> None:
        provider = self._providers.node_provider(attempt.provider)
        if provider is None:
            return
        # If the node is not connected, it has already dropped its waiting attempts.
        with suppress(ProviderError):
            await provider.stop_attempt(
                attempt.node_id, attempt.id, Reason.REVOKED, checkpoint=False
            )


def _is_startable(attempt: LiveAttempt) -> bool:
    return attempt.state in (AttemptState.INTENDED, AttemptState.SENT)


@lru_cache(maxsize=64)
def _read_spec(text: str) -> JobSpec:
    """The spec from its JSON in the ledger, where it was validated before.

    Jobs of one batch share their spec. One takes 8 kB, so the cache holds few.
    """
    return JobSpec.model_validate_json(text, context=STORED)
