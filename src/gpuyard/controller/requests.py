"""Requests of people and programs: submit, estimate, cancel, resume, why.

Each request that changes something returns after its commit.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import msgspec

from gpuyard.controller import owner_transitions, transitions
from gpuyard.controller.access import ALL_RIGHTS, Rights
from gpuyard.controller.admission import Admission, MakeEvents, refuse_impossible
from gpuyard.controller.arrays import Arrays
from gpuyard.controller.core import SLICE, Core
from gpuyard.controller.gangs import stop_shares
from gpuyard.controller.gpus import Gpus
from gpuyard.controller.intake import PreparedJob
from gpuyard.controller.job_changes import changed_spec, with_gpus
from gpuyard.controller.job_lookup import JobLookup
from gpuyard.controller.known_capacity import KnownCapacity
from gpuyard.controller.projects import unknown_project
from gpuyard.controller.secrets import Secrets
from gpuyard.controller.submissions import PresentCode, Submissions
from gpuyard.controller.visibility import EVERYTHING, Visibility
from gpuyard.domain.deadlines import refuse_past
from gpuyard.domain.errors import (
    InvalidInputError,
    JobNotFoundError,
    LedgerError,
    NotFoundError,
    ProviderError,
    RefusedError,
)
from gpuyard.domain.events import Event
from gpuyard.domain.jobspec import JobKind, JobSpec
from gpuyard.domain.offers import Strategy
from gpuyard.domain.prompt_fields import refuse_gpus
from gpuyard.domain.reasons import Reason
from gpuyard.domain.shape import Shape
from gpuyard.domain.states import AttemptState, JobState
from gpuyard.providers.base import TRANSIENT
from gpuyard.providers.configured import Providers
from gpuyard.scheduler.attempts import LiveAttempt
from gpuyard.scheduler.estimate import Estimate, estimate
from gpuyard.scheduler.explanation import Why
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.why import why
from gpuyard.storage.place import in_background

Changes = Mapping[str, Any]
NO_CHANGES: Changes = MappingProxyType({})


class Requests:
    """Carries out requests on the core.

    `capacity` is told of nodes and external queues that are heard from.
    """

    def __init__(
        self,
        core: Core,
        providers: Providers,
        secrets: Secrets,
        submissions: Submissions,
    ) -> None:
        self._core = core
        self._providers = providers
        self.submissions = submissions
        self.lookup = JobLookup(core)
        self.find = self.lookup.find
        # They are started later.
        self.capacity = KnownCapacity(lambda: providers.external_queues)
        self.gpus = Gpus(core, providers)
        # When the job of a model may end.
        self.when_it_leaves: Callable[[str], str] = lambda _: ""
        self._admission = Admission(
            core,
            providers,
            self.lookup.parents,
            self.capacity,
            lambda name: self.gpus.find(name).uuid,
            secrets,
            submissions,
        )
        self.arrays = Arrays(core, self._admission)

    async def until_node_is_known(self) -> None:
        """Wait for the first node, with its GPUs, while the server has only just
        started, so that a listing does not say that there is none.
        """
        await self.capacity.until_node()
        # The rows of the node may not be written yet.
        await self._core.committed()

    # --- submit ---

    async def submit(self, bodies: Sequence[Any]) -> list[str]:
        """Queue jobs given as JSON values, all or none; returns their ids in order.

        A repeated idempotency key gives the first job with that key.
        """
        try:
            encoded = [msgspec.Raw(msgspec.json.encode(body)) for body in bodies]
        except UnicodeEncodeError as error:
            half = ascii(error.object[error.start])
            fault = f"holds {half}, which is half of a character"
            raise InvalidInputError.of("job", fault, "write valid Unicode") from None
        jobs = await self.accept(encoded)
        return [job.id for job in jobs]

    async def accept(
        self,
        bodies: list[msgspec.Raw],
        make_events: MakeEvents | None = None,
        user: str | None = None,
        rights: Rights = ALL_RIGHTS,
    ) -> list[PreparedJob]:
        """Queue jobs given as JSON, all or none, in one commit with the events that
        `make_events` makes; empties `bodies` to free memory. `user` is who submits
        them, if that is known, and has these `rights`.
        """
        return await self._admission.accept(bodies, make_events, user, rights)

    async def check(
        self,
        body: msgspec.Raw,
        user: str | None = None,
        rights: Rights = ALL_RIGHTS,
    ) -> PreparedJob:
        """Check a job given as JSON as if it was to be queued; raises as `accept`
        does.
        """
        return await self._admission.check(body, user, rights)

    # --- estimate ---

    async def estimate(
        self,
        body: msgspec.Raw,
        strategy: Strategy | None,
        owner: str | None = None,
        visibility: Visibility = EVERYTHING,
    ) -> Estimate:
        """Where a job of `owner`, given as JSON, could run; the job is not queued.

        Raises InvalidInputError for a job that is not valid, NotFoundError for one of a
        project that does not exist for who asks.
        """
        core = self._core
        prepared = await self._admission.preview(body)
        template = prepared.template
        if template.project is not None and not visibility.sees(template.project):
            raise unknown_project(template.project)
        labels = msgspec.json.decode(prepared.labels)
        job_type = core.view.learning.type_of(prepared.name, labels)
        job = LiveJob(
            prepared.id,
            JobState.QUEUED,
            template.shape,
            template.priority,
            core.clock(),
            job_type=job_type,
            tier=template.tier,
            timeout_s=template.timeout_s,
            deadline=template.deadline,
            estimated_s=template.estimated_duration_s,
            project=template.project,
            owner=owner,
            party=core.view.usage.party(template.project, owner),
        )
        policy = replace(core.policy, strategy=strategy) if strategy else core.policy
        list_price = float(core.list_price_for(job).per_hour)
        return estimate(core.view, job, core.clock(), policy, list_price)

    # --- cancel ---

    async def cancel(self, job_id: str, reason: Reason = Reason.CANCELLED) -> None:
        """End the job. A job that has ended stays as it is. `reason`: CANCELLED if its
        owner asks for it, EVICTED for the server of a model.
        """
        core = self._core
        job = core.view.jobs.get(job_id)
        if job is None:
            # Its end may not be committed yet, and a crash would undo it.
            await core.committed()
            return
        now = core.clock()
        attempt = core.view.attempts.get(job.attempt_id or "")
        if attempt is None:
            cancelled = JobState.CANCELLED
            core.emit([transitions.job_ended(job, cancelled, reason, now)])
            core.schedule()
        elif attempt.state is not AttemptState.ENDING:
            core.emit([transitions.ending(attempt, reason, now)])
        elif not job.cancel_requested:
            core.emit([transitions.cancel_requested(job, attempt, now)])
        await core.committed()
        if attempt is not None and attempt.id in core.view.attempts:
            await self.stop(attempt, self.why_ending(attempt))

    async def cancel_running(self) -> int:
        """End every job that has an attempt, and return how many. The others wait on,
        and so do those that only wait inside this server.
        """
        attempts = list(self._core.view.attempts.values())
        waiting = [attempt for attempt in attempts if self._waits_here(attempt)]
        running = [attempt for attempt in attempts if not self._waits_here(attempt)]
        await asyncio.gather(
            *(self.cancel(attempt.job_id) for attempt in running),
            *(self._take_back(attempt) for attempt in waiting),
        )
        return len(running)

    def running_jobs(self) -> set[str]:
        """The jobs with an attempt, except those that only wait inside this server."""
        attempts = self._core.view.attempts.values()
        return {each.job_id for each in attempts if not self._waits_here(each)}

    def _waits_here(self, attempt: LiveAttempt) -> bool:
        """Whether it has not begun, and nobody but this server knows of it."""
        provider = self._providers.get(attempt.provider)
        is_inside = provider is not None and provider.ends_with_server
        return is_inside and attempt.started_at is None

    async def _take_back(self, attempt: LiveAttempt) -> None:
        """Queue the job again, whose attempt has not begun."""
        core = self._core
        if attempt.state is not AttemptState.ENDING:
            core.emit([transitions.ending(attempt, Reason.REVOKED, core.clock())])
        await core.committed()
        if attempt.id in core.view.attempts:
            await self.stop(attempt, self.why_ending(attempt))

    async def cancel_many(self, job_ids: Sequence[str]) -> None:
        """End these jobs: first the waiting ones, in slices and with one decision
        afterwards, then those with an attempt. Jobs that have ended stay as they are.
        """
        core = self._core
        await core.folded()
        view = core.view
        for start in range(0, len(job_ids), SLICE):
            self._cancel_waiting(job_ids[start : start + SLICE])
            await asyncio.sleep(0)
            if core.view is not view:
                break  # a commit failed, and the view was read again
        core.schedule()
        live = [job_id for job_id in job_ids if job_id in core.view.jobs]
        await asyncio.gather(*(self.cancel(job_id) for job_id in live))
        await core.committed()

    def _cancel_waiting(self, job_ids: Sequence[str]) -> None:
        """Cancel those of the jobs that still have no attempt."""
        core = self._core
        now = core.clock()
        events: list[Event] = []
        for job_id in job_ids:
            job = core.view.jobs.get(job_id)
            if job and job.attempt_id not in core.view.attempts:
                cancelled = JobState.CANCELLED
                events.append(
                    transitions.job_ended(job, cancelled, Reason.CANCELLED, now)
                )
        core.emit(events)

    async def stop(self, attempt: LiveAttempt, reason: str) -> None:
        """Let the provider stop the attempt.

        If the provider does not answer, the attempt is stopped when its node connects
        again, or by the polling of its external queue.
        """
        provider = self._providers.get(attempt.provider)
        node_provider = self._providers.node_provider(attempt.provider)
        checkpoint = Reason.of(reason).asks_to_save
        try:
            if node_provider is not None:
                await stop_shares(node_provider, attempt, reason, checkpoint)
            elif provider is not None and attempt.provider_ref:
                await provider.stop_job(attempt.provider_ref, checkpoint=checkpoint)
        except JobNotFoundError:
            # It has ended or never arrived. The next report or poll shows which.
            return
        except ProviderError as error:
            if error.error_code not in TRANSIENT:
                raise

    def why_ending(self, attempt: LiveAttempt) -> str:
        """Why an attempt is being stopped; a cancel by the owner comes first."""
        is_cancelled = self._core.view.jobs[attempt.job_id].cancel_requested
        if is_cancelled and attempt.reason != Reason.EVICTED:
            return Reason.CANCELLED
        return attempt.reason or Reason.PREEMPTED

    def stop_soon(self, attempt: LiveAttempt) -> None:
        """Stop an attempt that a decision ends, once that is committed."""
        self._core.spawn(self._stop_after_commit(attempt), "stop")

    async def _stop_after_commit(self, attempt: LiveAttempt) -> None:
        try:
            await self._core.committed()
        except LedgerError:
            return  # the view was read again, and in it the attempt is not ending
        if attempt.id in self._core.view.attempts:
            await self.stop(attempt, self.why_ending(attempt))

    # --- resume ---

    async def resume(
        self, job_id: str, checkpoint: str | None, changes: Changes = NO_CHANGES
    ) -> None:
        """Queue an ended job again, from its newest checkpoint or from `checkpoint` (an
        id, a path, a file name or a step), with the code that its folder has now.

        `changes`: new values of `timeout_s`, `deadline`, `priority` and `gpus` (fields
        of a GpuRequest; those left out stay).
        """
        core = self._core
        body = core.queries.specs([job_id])[job_id]
        present = await in_background(self.submissions.with_present_code, body)
        while not core.add_ended_parents(self._parents(job_id)):
            await core.committed()
        row = self._row(job_id)
        at_most = self._at_most(row["array_id"])
        core.emit([self._resumed(row, body, present, checkpoint, changes, at_most)])
        core.schedule()
        await core.committed(own_only=True)

    async def resume_array(self, array_id: str, changes: Changes = NO_CHANGES) -> None:
        """Queue those tasks of the array again that are over and have not completed;
        RefusedError if there are none. `changes`: as for `resume`.
        """
        core = self._core
        await core.committed()
        job_ids = await asyncio.to_thread(core.queries.task_ids, array_id, failed=True)
        job_ids = [job_id for job_id in job_ids if job_id not in core.view.jobs]
        if not job_ids:
            raise RefusedError(
                f"No task of {array_id} has ended without completing.",
                "There is nothing to resume.",
            )
        parents = self._parents(job_ids[0])
        present_code = PresentCode(self.submissions)
        commits: list[asyncio.Future[None]] = []
        for start in range(0, len(job_ids), SLICE):
            bodies = core.queries.specs(job_ids[start : start + SLICE])
            present = {i: await present_code.of(body) for i, body in bodies.items()}
            while not core.add_ended_parents(parents):
                await core.committed()
            at_most = self._at_most(array_id)
            rows = core.queries.jobs_by_id(bodies)
            core.emit(
                [
                    self._resumed(
                        row, bodies[job_id], present[job_id], None, changes, at_most
                    )
                    for job_id, row in rows.items()
                    if self._can_be_resumed(row)  # else somebody did meanwhile
                ]
            )
            commits.append(core.committed())
            await asyncio.sleep(0)
        core.schedule()
        await asyncio.gather(*commits, core.committed())

    def _can_be_resumed(self, row: Mapping[str, Any]) -> bool:
        state = JobState(row["state"])
        is_over = state.terminal and row["id"] not in self._core.view.jobs
        return is_over and state is not JobState.COMPLETED

    def _resumed(
        self,
        row: Mapping[str, Any],
        body: Mapping[str, Any],
        present: Mapping[str, Any] | None,
        checkpoint: str | None,
        changes: Changes,
        at_most: int | None,
    ) -> Event:
        """The event that queues an ended job (its ledger `row`) again. `body` is its
        spec, `present` the same with the code of now, None if that has not changed. At
        most `at_most` tasks of its array may run at once. RefusedError.
        """
        core = self._core
        job_id: str = row["id"]
        self._refuse_to_resume(row)
        chosen = self._named_checkpoint(job_id, checkpoint)
        if row["array_id"]:
            # The priority of its array may have changed while it was over.
            row = {**row, "priority": body.get("priority", row["priority"])}
        new_spec = None
        if changes:
            new_spec = self._changed_spec(present or body, changes)
            row = {**row, **_needs_of(row, new_spec)}
        elif present:
            new_spec = changed_spec(present, {})
        if row["kind"] == JobKind.LLM:
            # In older versions, its shape is that of a process on a node.
            row = {**row, "shape": Shape.of(core.read_spec(body)).to_row()}
        return owner_transitions.resumed(row, chosen, core.clock(), new_spec, at_most)

    def _refuse_to_resume(self, row: Mapping[str, Any]) -> None:
        """RefusedError for a job that is not over, or has completed."""
        job_id = row["id"]
        live = self._core.view.jobs.get(job_id)
        state = live.state if live else JobState(row["state"])
        if not state.terminal:
            raise RefusedError(
                f"Job {job_id} is {state}; only a job that is over can be resumed.",
                "Cancel it first, or wait.",
            )
        if state is JobState.COMPLETED:
            raise RefusedError(
                f"Job {job_id} has completed: there is nothing left to resume.",
                "Submit a new job.",
            )

    def _at_most(self, array_id: str | None) -> int | None:
        """How many tasks of the array may run at once; None for any number."""
        if array_id is None:
            return None
        live = self._core.view.arrays.get(array_id)
        if live is not None:  # it may have changed since the last commit
            return live.at_most
        array = self._core.queries.array(array_id)
        return array["at_most"] if array else None

    def _row(self, job_id: str) -> dict[str, Any]:
        row = self._core.queries.job(job_id)
        assert row is not None
        return row

    def _parents(self, job_id: str) -> set[str]:
        parents: list[str] | None = self._row(job_id)["depends_on"]
        return set(parents or ())

    def _changed_spec(self, body: Mapping[str, Any], changes: Changes) -> JobSpec:
        """The spec in the ledger (`body`) with these changes; InvalidInputError,
        CapacityError.
        """
        fields = {name: value for name, value in changes.items() if name != "gpus"}
        if "gpus" in changes:
            if body.get("kind") == JobKind.LLM:
                refuse_gpus("gpus")
            fields["resources"] = with_gpus(body, changes["gpus"])
            # The size and the price of a tier are those of its own GPUs.
            fields["tier"] = None
        spec = changed_spec(body, fields)
        if "deadline" in changes:
            refuse_past(changes["deadline"], self._core.clock())
        refuse_impossible(self._core.view, Shape.of(spec))
        return spec

    def _named_checkpoint(self, job_id: str, name: str | None) -> str:
        if name is None:
            return transitions.NEWEST
        kept = [row for row in self._core.queries.checkpoints_of(job_id) if row["kept"]]
        for row in reversed(kept):
            file_name = row["path"].rsplit("/", 1)[-1]
            if name in (row["id"], row["path"], file_name, str(row["step"])):
                return str(row["id"])
        paths = ", ".join(row["path"] for row in kept) or "none"
        raise NotFoundError(
            f"Job {job_id} has no checkpoint {name!r}.", f"Kept: {paths}."
        )

    # --- why ---

    def why(self, job_id: str) -> Why | None:
        """Why a pending job is not running; None if it is not pending."""
        view = self._core.view
        job = view.jobs.get(job_id)
        attempt = view.attempts.get(job.attempt_id or "") if job else None
        provider = self._providers.get(attempt.provider) if attempt else None
        if attempt and provider and attempt.id in view.external_queues.waiting:
            reason = provider.why_waiting(attempt.provider_ref or attempt.id)
            if reason:
                view.external_queues.reasons[attempt.id] = reason
        now = self._core.clock()
        return why(view, job_id, now, self._core.policy, self.when_it_leaves)


def _needs_of(row: Mapping[str, Any], spec: JobSpec) -> dict[str, Any]:
    """The columns of a job (its ledger `row`) that follow from what it needs."""
    same_deadline = spec.deadline == row["deadline"]
    return {
        "deadline": spec.deadline,
        "deadline_told": row["deadline_told"] if same_deadline else None,
        "priority": spec.priority,
        "timeout_s": spec.timeout_s,
        "tier": spec.tier,
        "shape": Shape.of(spec).to_row(),
    }
