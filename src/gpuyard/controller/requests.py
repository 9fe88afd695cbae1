"""What people ask for: submit, cancel, resume, why. Each answers only after its commit."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from gpuyard.controller import moves
from gpuyard.controller.admission import Admission
from gpuyard.controller.core import SLICE, Core
from gpuyard.controller.gpus import Gpus
from gpuyard.controller.intake import Prepared
from gpuyard.domain.errors import (
    InvalidInputError,
    JobNotFoundError,
    LedgerError,
    NotFoundError,
    ProviderError,
    RefusedError,
)
from gpuyard.domain.offers import Strategy
from gpuyard.domain.states import AttemptState, JobState
from gpuyard.providers.base import TRANSIENT, GpuProviderInterface, OwnsNodes, Queues
from gpuyard.scheduler.estimate import Estimate, estimate
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.observe import PREEMPTED
from gpuyard.scheduler.view import LiveAttempt
from gpuyard.scheduler.why import Why, why


class Requests:
    """The requests of people and programs, carried out on the core."""

    def __init__(self, core: Core, providers: Mapping[str, GpuProviderInterface]) -> None:
        self._core = core
        self._providers = providers
        self.joined = asyncio.Event()
        self.gpus = Gpus(core, providers)
        self._admission = Admission(core, providers, self.find, self.joined, lambda name: self.gpus.find(name).uuid)

    def find(self, reference: str) -> str:
        """The id of the job a person means: NotFoundError when none, InvalidInputError when several."""
        found = self._core.queries.find_job_ids(reference)
        if not found:
            raise NotFoundError(f"There is no job {reference!r}.", "`gpuyard jobs` lists them.")
        if len(found) > 1:
            raise InvalidInputError.of("job", f"{reference!r} could be {', '.join(found)}", "give more of the id")
        return found[0]

    # --- submit ---

    async def submit(self, bodies: Sequence[Any]) -> list[str]:
        """Queue jobs given as JSON values, all or none; their ids in order. A repeated key is the first job again."""
        return [job.id for job in await self.accept([msgspec.Raw(msgspec.json.encode(body)) for body in bodies])]

    async def accept(self, bodies: list[msgspec.Raw]) -> list[Prepared]:
        """Queue jobs given as JSON, all or none; empties `bodies`."""
        return await self._admission.accept(bodies)

    # --- estimate ---

    async def estimate(self, body: msgspec.Raw, strategy: Strategy | None) -> Estimate:
        """Where the job that `body` asks for could run; it is not queued. InvalidInputError."""
        core = self._core
        prepared = await self._admission.imagine(body)
        template = prepared.template
        kind = core.view.learning.type_of(prepared.name, msgspec.json.decode(prepared.labels))
        job = LiveJob(prepared.id, JobState.QUEUED, template.shape, template.priority, core.clock(), kind=kind,
                      tier=template.tier, timeout_s=template.timeout_s,
                      estimated_s=template.estimated_duration_s)  # fmt: skip
        policy = replace(core.policy, strategy=strategy) if strategy else core.policy
        return estimate(core.view, job, core.clock(), policy, float(core.listed(job).per_hour))

    # --- cancel ---

    async def cancel(self, job_id: str) -> None:
        """End the job. Idempotent; a job that is already over stays as it is."""
        core = self._core
        job = core.view.jobs.get(job_id)
        if job is None:
            await core.committed()  # its end may still be on its way to the ledger, and a crash would undo it
            return
        attempt = core.view.attempts.get(job.attempt_id or "")
        if attempt is None:
            core.emit([moves.settled(job, JobState.CANCELLED, "cancelled", core.clock())])
            core.schedule()
        elif attempt.state is not AttemptState.ENDING:
            core.emit([moves.ending(attempt, "cancelled", core.clock())])
        elif not job.cancel_requested:
            core.emit([moves.cancel_requested(job, attempt, core.clock())])
        await core.committed()
        if attempt is not None and attempt.id in core.view.attempts:
            await self.stop(attempt, "cancelled")

    async def cancel_all(self) -> None:
        """End every job: those that wait in slices and with one decision after them, then those that have begun."""
        core = self._core
        view, waiting = (
            core.view,
            [job.id for job in core.view.jobs.values() if job.attempt_id not in core.view.attempts],
        )
        for start in range(0, len(waiting), SLICE):
            now, jobs = core.clock(), [view.jobs.get(job_id) for job_id in waiting[start : start + SLICE]]
            core.emit([moves.settled(job, JobState.CANCELLED, "cancelled", now)
                       for job in jobs if job and job.attempt_id not in view.attempts])  # fmt: skip
            await asyncio.sleep(0)
            if core.view is not view:
                break  # read anew from the ledger: a commit failed
        core.schedule()
        await asyncio.gather(*(self.cancel(job_id) for job_id in list(core.view.jobs)))

    async def stop(self, attempt: LiveAttempt, reason: str) -> None:
        """Tell the provider; when it cannot be reached now, it is told when its node links up again."""
        provider = self._providers.get(attempt.provider)
        try:
            if isinstance(provider, OwnsNodes):
                await provider.stop_attempt(attempt.node_id, attempt.id, reason, checkpoint=reason == PREEMPTED)
            elif isinstance(provider, Queues) and attempt.provider_ref:
                await provider.stop_job(attempt.provider_ref, checkpoint=reason == PREEMPTED)
            elif provider and attempt.provider_ref:
                await provider.cancel_job(attempt.provider_ref)
        except JobNotFoundError:
            return  # it is over, or never arrived; whoever looks after it finds out which
        except ProviderError as error:
            if error.error_code not in TRANSIENT:
                raise

    def why_ending(self, attempt: LiveAttempt) -> str:
        """Why an attempt is being stopped: its owner's wish comes before all else."""
        cancelled = self._core.view.jobs[attempt.job_id].cancel_requested
        return "cancelled" if cancelled else attempt.reason or PREEMPTED

    def preempt(self, attempt: LiveAttempt) -> None:
        """Ask an attempt to leave, once the ledger says so: after saving its work, if it has begun."""
        self._core.spawn(self._preempt(attempt), "preempt")

    async def _preempt(self, attempt: LiveAttempt) -> None:
        try:
            await self._core.committed()
        except LedgerError:
            return  # Memory has been read anew without the preemption.
        if attempt.id in self._core.view.attempts:
            await self.stop(attempt, self.why_ending(attempt))

    # --- resume ---

    async def resume(self, job_id: str, checkpoint: str | None) -> None:
        """Queue an ended job again, from the newest checkpoint or a named one (id, path or step)."""
        core = self._core
        while not core.know_parents(set(self._row(job_id)["depends_on"])):
            await core.committed()
        row = self._row(job_id)
        live = core.view.jobs.get(job_id)
        state = live.state if live else JobState(row["state"])
        if not state.terminal:
            raise RefusedError(f"Job {job_id} is {state}; only a job that is over can be resumed.",
                               "Cancel it first, or wait.")  # fmt: skip
        if state is JobState.COMPLETED:
            raise RefusedError(f"Job {job_id} has completed: there is nothing left to resume.", "Submit a new job.")
        chosen = self._named_checkpoint(job_id, checkpoint)
        core.emit([moves.resumed(row, chosen, core.clock())])
        core.schedule()
        await core.committed(mine=True)

    def _row(self, job_id: str) -> dict[str, Any]:
        row = self._core.queries.job(job_id)
        assert row is not None
        return row

    def _named_checkpoint(self, job_id: str, name: str | None) -> str:
        kept = [row for row in self._core.queries.checkpoints_of(job_id) if row["kept"]]
        if name is None:
            return moves.NEWEST
        for row in reversed(kept):
            if name in (row["id"], row["path"], row["path"].rsplit("/", 1)[-1], str(row["step"])):
                return str(row["id"])
        known = ", ".join(row["path"] for row in kept) or "none"
        raise NotFoundError(f"Job {job_id} has no checkpoint {name!r}.", f"Kept: {known}.")

    # --- why ---

    def why(self, job_id: str) -> Why | None:
        """Why a pending job is not running; None when it is not pending."""
        return why(self._core.view, job_id, self._core.clock(), self._core.policy)
