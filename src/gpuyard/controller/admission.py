"""Admission: jobs that were sent together are validated, looked at by their providers and queued, all or none.

Many jobs are worked through in slices, between which others have their turn; they are one commit all the same.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import msgspec

from gpuyard.controller import moves
from gpuyard.controller.core import SLICE, Core
from gpuyard.controller.intake import MAX_JOBS, Intake, Prepared, Template, find_parents, numbered, refuse_shared_keys
from gpuyard.domain.errors import CapacityError, Fault, InvalidInputError, NotFoundError, RefusedError
from gpuyard.providers.base import GpuProviderInterface
from gpuyard.scheduler.refusal import impossible

FIRST_NODE_S = 5.0
# Who sends thousands of jobs that are all wrong is told of the first.
_ENOUGH_FAULTS = 100
T = TypeVar("T")


class Admission:
    """The way into the queue. `find(reference)` gives the job a person means; `joined` is set once a node is there."""

    def __init__(
        self,
        core: Core,
        providers: Mapping[str, GpuProviderInterface],
        find: Callable[[str], str],
        joined: asyncio.Event,
        find_gpu: Callable[[str], str],
    ) -> None:
        self._core = core
        self._providers = providers
        self._find = find
        self._joined = joined
        self._intake = Intake(core.tiers, core.settings.models, find_gpu, core.scripts,
                              lambda: [name for name, provider in providers.items() if provider.containers],
                              core.images)  # fmt: skip
        self._door = asyncio.Lock()

    async def accept(self, bodies: list[msgspec.Raw]) -> list[Prepared]:
        """Queue jobs given as JSON, and empty `bodies`: they may be many megabytes. Answers after the commit.

        One whose idempotency key was used before is the first job with that key, and has no `queued_at`.
        """
        jobs = await self._read(bodies)
        bodies.clear()
        refuse_shared_keys(jobs)
        find_parents(jobs, self._find_parent)
        while not await self._queue(jobs):
            await self._core.committed()
        self._core.schedule()
        # One that an earlier request made may still be on its way.
        await self._core.committed(mine=all(job.queued_at is not None for job in jobs))
        return jobs

    async def imagine(self, body: msgspec.Raw) -> Prepared:
        """The job that `body` asks for, which is valid, and is not queued; InvalidInputError."""
        job, _ = self._intake.read(body)
        await self._first_node()
        return job

    async def _first_node(self) -> None:
        """A server that has just started learns in a moment what this machine has."""
        if not self._joined.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._joined.wait(), FIRST_NODE_S)

    # --- before anything is queued ---

    async def _read(self, bodies: list[msgspec.Raw]) -> list[Prepared]:
        """All of them valid and possible, or one error."""
        if not 1 <= len(bodies) <= MAX_JOBS:
            raise InvalidInputError.of("(body)", f"holds {len(bodies)} jobs", f"send 1 to {MAX_JOBS} at once")
        alone = len(bodies) == 1
        jobs: list[Prepared] = []
        faults: list[Fault] = []
        seen: set[object] = set()
        async for start, part in _in_slices(bodies):
            read: list[tuple[Prepared, Sequence[str]]] = []
            for position, body in enumerate(part, start):
                try:
                    read.append(self._intake.read(body))
                except InvalidInputError as error:
                    faults += error.faults if alone else numbered(error, position)
            if len(faults) >= _ENOUGH_FAULTS:
                break
            if not faults:
                await self._check(read, seen)
                jobs += [job for job, _ in read]
        if faults:
            raise InvalidInputError(faults)
        return jobs

    async def _check(self, read: Sequence[tuple[Prepared, Sequence[str]]], seen: set[object]) -> None:
        """Refuse what can never run. A job that an earlier request made is not looked at again."""
        known = self._known([job for job, _ in read])
        for job, command in read:
            if job.id not in known:
                await self._look_at(job.template, tuple(command[:2]), seen)

    async def _look_at(self, template: Template, program: tuple[str, ...], seen: set[object]) -> None:
        """`seen` holds the shapes and programs of this request that have been found good."""
        await self._first_node()
        if template.shape not in seen:
            verdict = impossible(self._core.view, template.shape)
            if verdict is not None:
                raise CapacityError(_sentence(verdict.reason), _sentence(verdict.largest))
            seen.add(template.shape)
        name = template.provider or next(iter(self._providers))
        if name not in self._providers:
            known = ", ".join(self._providers)
            raise InvalidInputError.of("provider", f"there is no provider {name!r}", f"configured here: {known}")
        start = (name, program, template.workdir, template.path)
        if start not in seen and not template.shape.image:  # what is in an image cannot be looked at from here
            await self._providers[name].check(program, template.workdir, template.path)
            seen.add(start)

    def _find_parent(self, reference: str) -> str | None:
        try:
            return self._find(reference)
        except NotFoundError:
            return None
        except InvalidInputError as error:
            raise InvalidInputError([replace(fault, field="depends_on") for fault in error.faults]) from None

    def _known(self, jobs: Sequence[Prepared]) -> dict[str, str]:
        """By the new job's id, the job that an earlier request with its key made; RefusedError if that was another."""
        keyed = {job.key: job for job in jobs if job.key is not None}
        if not keyed:
            return {}
        known: dict[str, str] = {}
        queries, submitting = self._core.queries, self._core.submitting
        written = queries.jobs_by_idempotency_key(list(keyed))
        specs = queries.specs(written.values()) if written else {}
        for key, job in keyed.items():
            if key in written:
                job_id, before = written[key], specs[written[key]]
            elif key in submitting:
                job_id, before = submitting[key].id, submitting[key].spec()
            else:
                continue
            if before != job.spec():
                raise RefusedError(
                    f"idempotency_key {key!r} was used for another spec (job {job_id}).", "Use a new key."
                )
            known[job.id] = job_id
        return known

    # --- into the queue ---

    async def _queue(self, jobs: Sequence[Prepared]) -> bool:
        """Give `jobs` to the ledger and to memory; False when what was looked up for it may hold no more."""
        core = self._core
        async with self._door:  # behind it no key comes into use while others have their turn
            view = core.view
            known: dict[str, str] = {}
            async for _, part in _in_slices(jobs):
                known |= self._known(part)
            new = [job for job in jobs if job.id not in known]
            if core.view is not view or not core.know_parents(_outside(new, known)):
                return False  # a commit failed meanwhile, or the end of a parent is still on its way to the ledger
            now = core.clock()
            for job in jobs:
                job.queued_at = None if job.id in known else now
                job.id = known.get(job.id, job.id)
            events = moves.Submissions(new, now)
            if len(new) > SLICE:
                folded = core.emit_many(events)
            else:
                folded = None
                core.emit(events[:])
            self._hold_keys(new)
        if folded is not None:
            await folded
        return True

    def _hold_keys(self, jobs: Sequence[Prepared]) -> None:
        """Remember the keys of `jobs` until these are in the ledger, or are not going to be."""
        submitting = self._core.submitting
        held = {job.key: job for job in jobs if job.key is not None}
        if not held:
            return
        submitting |= held

        def let_go(done: asyncio.Future[None]) -> None:
            if not done.cancelled():
                done.exception()  # whoever waits for the jobs hears of it
            for key, job in held.items():
                if submitting.get(key) is job:
                    del submitting[key]

        self._core.committed(mine=True).add_done_callback(let_go)


async def _in_slices(items: Sequence[T]) -> AsyncIterator[tuple[int, Sequence[T]]]:
    """`items` in slices, each with the position of its first, and a turn for everyone else between them."""
    for start in range(0, len(items), SLICE):
        if start:
            await asyncio.sleep(0)
        yield start, items[start : start + SLICE]


def _outside(jobs: Sequence[Prepared], known: Mapping[str, str]) -> set[str]:
    """The parents of `jobs` that are not among them; those that an earlier request made stand for its new ones."""
    children = [job for job in jobs if job.parents]
    for job in children:
        job.parents = tuple(known.get(parent, parent) for parent in job.parents)
    parents = {parent for job in children for parent in job.parents}
    return parents - {job.id for job in jobs} if parents else parents


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
