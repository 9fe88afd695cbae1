"""What people ask for: submit, cancel, resume, why. Each answers only after its commit."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from gpuyard.controller import moves
from gpuyard.controller.core import Core
from gpuyard.controller.intake import Prepared, prepare
from gpuyard.domain.errors import CapacityError, InvalidInputError, NotFoundError, ProviderError, RefusedError
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.shape import Shape
from gpuyard.domain.states import AttemptState, JobState
from gpuyard.providers.base import GpuProviderInterface, OwnsNodes
from gpuyard.scheduler.refusal import impossible
from gpuyard.scheduler.view import LiveAttempt
from gpuyard.scheduler.why import Why, why

FIRST_NODE_S = 5.0


class Requests:
    """The requests of people and programs, carried out on the core."""

    def __init__(self, core: Core, providers: Mapping[str, GpuProviderInterface]) -> None:
        self._core = core
        self._providers = providers
        self.joined = asyncio.Event()

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
        """Queue jobs, all or none; returns their ids in order. A repeated idempotency key returns the first job's."""
        core = self._core
        prepared = prepare(bodies, core.tiers, self._find_parent)
        await self._check([item.spec for item in prepared if self._same_as_before(item) is None])
        while True:
            # Looked up again: another request may have used a key meanwhile. From here to the events nothing waits.
            ids = [self._same_as_before(item) for item in prepared]
            known = {item.id: job_id for item, job_id in zip(prepared, ids, strict=True) if job_id}
            new = [_with_parents(item, known) for item in prepared if item.id not in known]
            outside = {parent for item in new for parent in item.parents} - {item.id for item in new}
            if core.know_parents(outside):
                break
            await core.committed()
        core.emit([moves.submitted(item.id, item.spec, item.parents, item.warnings, core.clock()) for item in new])
        core.submitting |= {i.spec.idempotency_key: (i.id, _body(i.spec)) for i in new if i.spec.idempotency_key}
        core.schedule()
        await core.committed(mine=True)
        return [known.get(item.id, item.id) for item in prepared]

    async def _know_parents(self, job_ids: set[str]) -> None:
        while not self._core.know_parents(job_ids):
            await self._core.committed()

    def _find_parent(self, reference: str) -> str | None:
        try:
            return self.find(reference)
        except NotFoundError:
            return None
        except InvalidInputError as error:
            raise InvalidInputError([replace(fault, field="depends_on") for fault in error.faults]) from None

    def _same_as_before(self, item: Prepared) -> str | None:
        """The job an earlier request with the same idempotency key made; refused if that asked for something else."""
        key = item.spec.idempotency_key
        if key is None:
            return None
        row = self._core.queries.job_by_idempotency_key(key)
        if row is not None:
            job_id, before = row["id"], self._core.queries.specs([row["id"]])[row["id"]]
        elif key in self._core.submitting:
            job_id, before = self._core.submitting[key]
        else:
            return None
        if before != _body(item.spec):
            raise RefusedError(f"idempotency_key {key!r} was used for another spec (job {job_id}).", "Use a new key.")
        return job_id

    async def _check(self, specs: Sequence[JobSpec]) -> None:
        if specs and not self.joined.is_set():
            with suppress(TimeoutError):
                # A server that has just started learns in a moment what this machine has.
                await asyncio.wait_for(self.joined.wait(), FIRST_NODE_S)
        for spec in specs:
            verdict = impossible(self._core.view, Shape.of(spec))
            if verdict is not None:
                raise CapacityError(_sentence(verdict.reason), _sentence(verdict.largest))
            name = spec.provider or next(iter(self._providers))
            if name not in self._providers:
                raise InvalidInputError.of("provider", f"there is no provider {name!r}",
                                           f"configured here: {', '.join(self._providers)}")  # fmt: skip
            await self._providers[name].check(spec)

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
        await core.committed()
        if attempt is not None and attempt.id in core.view.attempts:
            await self.stop(attempt, "cancelled")

    async def stop(self, attempt: LiveAttempt, reason: str) -> None:
        """Tell the provider; when it cannot be reached now, it is told when its node links up again."""
        provider = self._providers[attempt.provider]
        try:
            if isinstance(provider, OwnsNodes):
                await provider.stop_attempt(attempt.node_id, attempt.id, reason, checkpoint=False)
            elif attempt.provider_ref:
                await provider.cancel_job(attempt.provider_ref)
        except ProviderError as error:
            if error.error_code != "NOT_CONNECTED":
                raise

    # --- resume ---

    async def resume(self, job_id: str, checkpoint: str | None) -> None:
        """Queue an ended job again, from the newest checkpoint or a named one (id, path or step)."""
        core = self._core
        await self._know_parents(set(self._row(job_id)["depends_on"]))
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


def _body(spec: JobSpec) -> dict[str, Any]:
    return spec.model_dump(mode="json", exclude_defaults=True)


def _with_parents(item: Prepared, known: Mapping[str, str]) -> Prepared:
    """`item` with parents that an idempotency key made before standing for those of this submission."""
    return replace(item, parents=tuple(known.get(parent, parent) for parent in item.parents))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
