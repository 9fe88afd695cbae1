"""Admission: validates the jobs of one request, lets their providers check them, and
queues them, all or none.

Many jobs are handled in slices, so that other tasks can run in between. They are still
one commit.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import msgspec

from gpuyard.controller import transitions
from gpuyard.controller.access import ALL_RIGHTS, Rights
from gpuyard.controller.core import FOLDED_AT_ONCE, SLICE, Core
from gpuyard.controller.intake import (
    MAX_JOBS,
    Intake,
    PreparedJob,
    Template,
    numbered,
    refuse_shared_keys,
)
from gpuyard.controller.known_capacity import KnownCapacity
from gpuyard.controller.model_choice import ModelChoice, without_chosen_model
from gpuyard.controller.new_notices import refuse_addresses
from gpuyard.controller.parents import find_parents
from gpuyard.controller.script_code import add_script_code
from gpuyard.controller.secrets import Secrets
from gpuyard.controller.shares import refuse_over_quota
from gpuyard.controller.submissions import Submissions
from gpuyard.controller.visibility import Visibility
from gpuyard.domain.deadlines import refuse_past
from gpuyard.domain.errors import (
    CapacityError,
    Fault,
    InvalidInputError,
    NotFoundError,
    RefusedError,
)
from gpuyard.domain.events import Event
from gpuyard.domain.idempotency_keys import given_key
from gpuyard.domain.shape import Shape
from gpuyard.providers.configured import Providers
from gpuyard.scheduler.refusal import impossible
from gpuyard.scheduler.view import View

# A request in which thousands of jobs are wrong is answered with the first faults.
_ENOUGH_FAULTS = 100
# What differs when the same request is made again.
_OF_ITS_MOMENT = frozenset({"carried_environment", "submitted_code", "deadline"})
T = TypeVar("T")
MakeEvents = Callable[[Sequence[PreparedJob], float], Sequence[Event]]
"""Makes events, at a time in UTC seconds, that are committed together with jobs."""


class Admission:
    """Takes jobs into the queue.

    `find(reference, visibility)` gives the ids of the jobs that a person means,
    `find_gpu(reference)` the UUID of the GPU.
    """

    def __init__(
        self,
        core: Core,
        providers: Providers,
        find: Callable[[str, Visibility], Sequence[str]],
        capacity: KnownCapacity,
        find_gpu: Callable[[str], str],
        secrets: Secrets,
        submissions: Submissions,
    ) -> None:
        self._secrets = secrets
        self._core = core
        self._providers = providers
        self._find = find
        self._capacity = capacity
        self._intake = Intake(
            core.tiers,
            ModelChoice(
                core.settings.models,
                core.settings.resource_manager.default_models,
                lambda model: core.model_load_s(model),
            ),
            find_gpu,
            core.scripts,
            self._container_providers,
            core.images,
            submissions,
            self._can_start,
            core.clock,
            gives_gpu=core.settings.defaults.gpus == "auto",
            image_is_optional=self._image_is_optional,
        )
        self._submissions = submissions
        self._queue_lock = asyncio.Lock()

    def _can_start(self, shape: Shape) -> bool:
        return impossible(self._core.view, shape) is None

    def _image_is_optional(self, name: str) -> bool:
        return self._providers[name].image_is_optional

    def _container_providers(self) -> list[str]:
        return [
            name for name, provider in self._providers.items() if provider.containers
        ]

    async def accept(
        self,
        bodies: list[msgspec.Raw],
        make_events: MakeEvents | None = None,
        user: str | None = None,
        rights: Rights = ALL_RIGHTS,
    ) -> list[PreparedJob]:
        """Queue jobs given as JSON, which `user` submits, if that is known; returns
        after the commit. Empties `bodies`, which may be many megabytes.

        For an idempotency key that was used before, the result has the first job with
        that key, without `queued_at`. `make_events(jobs, now)` is called when nothing
        else can refuse the new `jobs`, and may itself refuse them. It is for few jobs.
        DiskFullError while the disk is too full for new jobs.
        """
        jobs = await self._read(bodies, user, rights)
        bodies.clear()
        await add_script_code(jobs, self._submissions)
        refuse_shared_keys(jobs)
        find_parents(jobs, partial(self._find_parents, rights.visibility))
        await self.check_workspaces(jobs)
        while not await self._queue(jobs, make_events):
            await self._core.committed()
        self._core.schedule()
        # The job of an earlier request may not be committed yet, so wait for all then.
        all_are_new = all(job.queued_at is not None for job in jobs)
        await self._core.committed(own_only=all_are_new)
        return jobs

    async def check_workspaces(self, jobs: Sequence[PreparedJob]) -> None:
        """RefusedError for a new job whose workspace is too full."""
        keys = {job.template.shape.workspace for job in jobs} - {""}
        if not keys or self._core.check_workspaces is None:
            return
        earlier = self._earlier_jobs(jobs)
        new = [job for job in jobs if job.id not in earlier]
        wanted = {job.template.shape.workspace for job in new} - {""}
        await self._core.check_workspaces(wanted)

    async def check(
        self,
        body: msgspec.Raw,
        user: str | None = None,
        rights: Rights = ALL_RIGHTS,
    ) -> PreparedJob:
        """Check a job given as JSON as if `user` was to queue it."""
        (job,) = await self._read([body], user, rights)
        find_parents([job], partial(self._find_parents, rights.visibility))
        return job

    async def read_shared(
        self, body: msgspec.Raw, user: str | None, rights: Rights = ALL_RIGHTS
    ) -> tuple[PreparedJob, Sequence[str]]:
        """Read what the tasks of an array share, as for one job that `user` submits,
        and its command.
        """
        if self._core.settings.defaults.gpus:
            await self._capacity.until_complete()
        (job, command) = await self._read_one(body, user, rights.visibility)
        rights.check_submits(job.template.project)
        find_parents([job], partial(self._find_parents, rights.visibility))
        return job, command

    async def check_shared(self, job: PreparedJob, command: Sequence[str]) -> None:
        """Refuse an array of which no task can run; `command` is that of a task."""
        await self._check(job.template, _program(command), set())

    async def preview(self, body: msgspec.Raw) -> PreparedJob:
        """Validate a job given as JSON, without queueing it.

        Raises InvalidInputError.
        """
        if self._core.settings.defaults.gpus:
            await self._capacity.until_complete()
        job, _ = self._intake.read(body)
        await self._capacity.until_complete()
        return job

    # --- before anything is queued ---

    async def _read(
        self, bodies: list[msgspec.Raw], user: str | None, rights: Rights
    ) -> list[PreparedJob]:
        """Read and check all jobs; raises one error for all faults."""
        if not 1 <= len(bodies) <= MAX_JOBS:
            raise InvalidInputError.of(
                "(body)", f"holds {len(bodies)} jobs", f"send 1 to {MAX_JOBS} at once"
            )
        if self._core.settings.defaults.gpus:
            await self._capacity.until_complete()
        is_single = len(bodies) == 1
        jobs: list[PreparedJob] = []
        faults: list[Fault] = []
        checked: set[object] = set()
        async for start, part in _in_slices(bodies):
            read: list[tuple[PreparedJob, Sequence[str]]] = []
            for position, body in enumerate(part, start):
                try:
                    read.append(await self._read_one(body, user, rights.visibility))
                except InvalidInputError as error:
                    faults += error.faults if is_single else numbered(error, position)
            for project in {job.template.project for job, _ in read}:
                rights.check_submits(project)
            if len(faults) >= _ENOUGH_FAULTS:
                break
            if not faults:
                await self._check_new(read, checked, None if is_single else start)
                jobs += [job for job, _ in read]
        if faults:
            raise InvalidInputError(faults)
        return jobs

    async def _read_one(
        self, body: msgspec.Raw, user: str | None, visibility: Visibility
    ) -> tuple[PreparedJob, Sequence[str]]:
        """Read a job; the GPU that a task names may only be about to report."""
        try:
            return self._intake.read(body, user, visibility)
        except NotFoundError:
            await self._capacity.until_complete()
            await self._core.committed()  # the rows of the node
            return self._intake.read(body, user, visibility)

    async def _check_new(
        self,
        read: Sequence[tuple[PreparedJob, Sequence[str]]],
        checked: set[object],
        first: int | None,
    ) -> None:
        """Check the jobs, each given with its command, that no earlier request made.

        `first` is the position of the first of them in the request; None if the request
        is about one job.
        """
        earlier = self._earlier_jobs([job for job, _ in read])
        for number, (job, command) in enumerate(read):
            if job.id in earlier:
                continue
            try:
                await self._check(job.template, _program(command), checked)
            except InvalidInputError as error:
                if first is None:
                    raise
                raise InvalidInputError(numbered(error, first + number)) from None

    async def _check(
        self, template: Template, program: tuple[str, ...], checked: set[object]
    ) -> None:
        """Refuse a job that can never run.

        `checked` collects the shapes and programs of this request that passed.
        """
        await self._capacity.until_complete()
        if template.deadline is not None:
            refuse_past(template.deadline, self._core.clock())
        if template.shape not in checked:
            refuse_impossible(self._core.view, template.shape)
            checked.add(template.shape)
        name = template.provider or next(iter(self._providers))
        if name not in self._providers:
            names = ", ".join(self._providers)
            raise InvalidInputError.of(
                "provider",
                f"there is no provider {name!r}",
                f"configured here: {names}",
            )
        mailbox_of = self._submissions.mailbox_of
        refuse_addresses(template, self._core.settings.notify, mailbox_of)
        self._refuse_without_agent(template)
        asked = (template.user, *template.secrets.items())
        if asked not in checked:
            await self._secrets.check(template.secrets, template.user)
            checked.add(asked)
        start = (name, program, template.workdir, template.path)
        # The files in an image cannot be checked from here.
        if start not in checked and not template.shape.image:
            await self._providers[name].check(program, template.workdir, template.path)
            checked.add(start)

    def _refuse_without_agent(self, template: Template) -> None:
        """InvalidInputError for a job that needs an agent and allows no place with
        one.
        """
        shape = template.shape
        named = (shape.provider,) if shape.provider else shape.providers
        with_agents = set(self._providers.node_providers)
        if shape.image:
            with_agents = {
                name
                for name, provider in self._providers.items()
                if provider.containers_on
            }
        if not shape.owned or not named or with_agents.intersection(named):
            return
        raise InvalidInputError.of(
            "provider" if shape.provider else "allowed.providers",
            f"is {', '.join(named)}, which runs no interactive jobs, no scripts and no"
            " jobs with packages: they need an agent of gpuyard",
            f"name {' or '.join(sorted(with_agents))}, or none",
        )

    def _find_parents(
        self, visibility: Visibility, reference: str
    ) -> Sequence[str] | None:
        try:
            return self._find(reference, visibility)
        except NotFoundError:
            return None
        except InvalidInputError as error:
            raise InvalidInputError(
                [replace(fault, field="depends_on") for fault in error.faults]
            ) from None

    def _earlier_jobs(self, jobs: Sequence[PreparedJob]) -> dict[str, str]:
        """The jobs that earlier requests made with the same idempotency keys: their ids
        by the ids of `jobs`.

        Raises RefusedError if an earlier job has another spec.
        """
        keyed = {job.key: job for job in jobs if job.key is not None}
        if not keyed:
            return {}
        earlier: dict[str, str] = {}
        queries = self._core.queries
        submitting = self._core.submitting
        written = queries.jobs_by_idempotency_key(list(keyed))
        specs = queries.specs(written.values()) if written else {}
        for key, job in keyed.items():
            if key in written:
                job_id = written[key]
                spec = specs[job_id]
            elif key in submitting:
                job_id = submitting[key].id
                spec = submitting[key].spec()
            else:
                continue
            if not are_equal(spec, job.spec()):
                raise RefusedError(
                    f"idempotency_key {given_key(key)!r} was used for another spec (job"
                    f" {job_id}).",
                    "Use a new key.",
                )
            earlier[job.id] = job_id
        return earlier

    # --- queueing ---

    async def _queue(
        self, jobs: Sequence[PreparedJob], make_events: MakeEvents | None
    ) -> bool:
        """Give `jobs` to the ledger and to the view; False if it must be tried again
        after the next commit.
        """
        core = self._core
        # Under the lock, no other request can use the same key between the slices.
        async with self._queue_lock:
            view = core.view
            earlier: dict[str, str] = {}
            async for _, part in _in_slices(jobs):
                earlier |= self._earlier_jobs(part)
            if core.view is not view:
                return False  # a commit failed, and the view was read again
            new = [job for job in jobs if job.id not in earlier]
            if new:
                core.refuse_when_full()
            parents = _parents_elsewhere(new, earlier)
            if not core.add_ended_parents(parents):
                return False  # the end of a parent is not committed yet
            now = core.clock()
            for job in jobs:
                job.queued_at = None if job.id in earlier else now
                job.id = earlier.get(job.id, job.id)
            events = transitions.SubmissionEvents(new, now)
            refuse_over_quota(view.usage, events)
            if len(new) > FOLDED_AT_ONCE:
                folded = core.emit_many(events, parents)
            else:
                folded = None
                more = make_events(new, now) if make_events and new else ()
                core.emit([*events[:], *more])
            self._reserve_keys(new)
            # The next request must see these jobs when it asks for its quota.
            if folded is not None and view.usage.limits_queued:
                await folded
        if folded is not None:
            await folded
        return True

    def _reserve_keys(self, jobs: Sequence[PreparedJob]) -> None:
        """Remember the idempotency keys of `jobs` until their commit is done or has
        failed.
        """
        submitting = self._core.submitting
        reserved = {job.key: job for job in jobs if job.key is not None}
        if not reserved:
            return
        submitting |= reserved

        def release(done: asyncio.Future[None]) -> None:
            if not done.cancelled():
                # Mark the exception as retrieved: the request itself raises it.
                done.exception()
            for key, job in reserved.items():
                if submitting.get(key) is job:
                    del submitting[key]

        self._core.committed(own_only=True).add_done_callback(release)


def _program(command: Sequence[str]) -> tuple[str, ...]:
    """What a provider looks at: the program, and the file that it may run. A number is
    none; thousands of jobs may differ only in that.
    """
    is_file = any(map(str.isalpha, "".join(command[1:2])))
    return tuple(command[: 1 + is_file])


async def _in_slices(items: Sequence[T]) -> AsyncIterator[tuple[int, Sequence[T]]]:
    """`items` in slices, each with the position of its first item; other tasks run in
    between.
    """
    for start in range(0, len(items), SLICE):
        if start:
            await asyncio.sleep(0)
        yield start, items[start : start + SLICE]


def _parents_elsewhere(
    jobs: Sequence[PreparedJob], earlier: Mapping[str, str]
) -> set[str]:
    """The parents of `jobs` that are not among them.

    Also replaces each parent that an earlier request had already made (`earlier`).
    """
    children = [job for job in jobs if job.parents]
    for job in children:
        job.parents = tuple(earlier.get(parent, parent) for parent in job.parents)
        job.parent_ends = {
            earlier.get(parent, parent): end
            for parent, end in (job.parent_ends or {}).items()
        }
    parents = {parent for job in children for parent in job.parents}
    if not parents:
        return parents
    return parents - {job.id for job in jobs}


def are_equal(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two specs mean the same job: a request may be repeated from another
    shell, after an edit, and later, when a deadline such as `8h` is another moment.
    """
    ours = without_chosen_model(first)
    theirs = without_chosen_model(second)
    names = (ours.keys() | theirs.keys()) - _OF_ITS_MOMENT
    return all(ours.get(name) == theirs.get(name) for name in names)


def refuse_impossible(view: View, shape: Shape) -> None:
    """CapacityError for needs that no place could ever meet."""
    refusal = impossible(view, shape)
    if refusal is not None:
        raise CapacityError(_as_sentence(refusal.reason), _as_sentence(refusal.largest))


def _as_sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
