"""Schedules: submits their jobs at their times.

A job and the step of its schedule to the next time are one commit. So whenever a server
is killed, no time is lost and none has two jobs.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
import structlog

from gpuyard.controller import schedule_events
from gpuyard.controller.access import ALL_RIGHTS, Rights
from gpuyard.controller.core import Core
from gpuyard.controller.intake import PreparedJob
from gpuyard.controller.requests import Requests
from gpuyard.controller.schedule_events import LiveSchedule, job_of
from gpuyard.controller.visibility import EVERYTHING, Visibility
from gpuyard.domain.cron import CronTimes
from gpuyard.domain.errors import (
    GpuyardError,
    InvalidInputError,
    LedgerError,
    NotFoundError,
    ProviderError,
    RefusedError,
)
from gpuyard.domain.events import Event
from gpuyard.domain.idempotency_keys import owned_key
from gpuyard.domain.ids import new_id
from gpuyard.domain.schedules import (
    LABEL,
    Overlap,
    ScheduleChanges,
    ScheduleSpec,
    SkipReason,
)
from gpuyard.domain.states import JobState
from gpuyard.domain.units import format_duration
from gpuyard.ledger.queries.job_filter import JobFilter
from gpuyard.providers.base import TRANSIENT
from gpuyard.scheduler.jobs import LiveJob

# A timer does not count the time in which its host was suspended, nor does it know that
# a clock was set. So times are compared again at least this often.
LOOK_AGAIN_S = 15.0
# A clock that was set back by more than this was wrong before, as cron sees it. After a
# smaller step, times that were dealt with do not come again.
SET_BACK_S = 3 * 3600.0
_RETRY_S = 1.0
log = structlog.get_logger(__name__)


class _NoLongerDueError(RefusedError):
    """It was changed while its job was made ready."""


class Schedules:
    """The schedules of an instance, as an extension of the controller."""

    def __init__(self, core: Core, requests: Requests) -> None:
        self._core = core
        self._requests = requests
        # ForbiddenError or NotFoundError for a user who may no longer submit jobs, or
        # none of this project.
        self.check_submits: Callable[[str, str | None], object] = lambda _, __: None
        self._by_id: dict[str, LiveSchedule] = {}
        # The jobs of each, as far as it is known; those that have ended are dropped.
        self._jobs: dict[str, list[str]] = {}
        # Why the newest time of a schedule could not be dealt with yet.
        self._delays: dict[str, str] = {}
        # Those of which a time is being dealt with.
        self._busy: set[str] = set()
        self._alarm: asyncio.TimerHandle | None = None

    # --- the extension ---

    def start(self) -> None:
        """Find the schedules in the ledger, and begin to submit jobs."""
        self._read()
        for schedule in self._by_id.values():
            self._core.spawn(self._cancel_previous(schedule), "previous jobs")
        self._set_alarm()

    def before_deciding(self) -> None:
        """Nothing: its jobs come to the queue as those of people do."""

    def reload(self) -> None:
        """Find the schedules in the ledger again."""
        self._read()
        self._set_alarm()

    @property
    def idle(self) -> bool:
        """True when no time will come."""
        return all(one.next_at is None for one in self._by_id.values())

    async def close(self) -> None:
        """Submit nothing more."""
        if self._alarm:
            self._alarm.cancel()
        self._by_id = {}

    def _read(self) -> None:
        rows = self._core.queries.schedules()
        self._by_id = {row["id"]: LiveSchedule.of(row) for row in rows}
        states = [state.value for state in JobState if not state.terminal]
        for schedule_id in self._by_id:
            of_schedule = JobFilter(states=states, labels={LABEL: schedule_id})
            ids = self._core.queries.job_ids(of_schedule)
            self._jobs[schedule_id] = sorted(ids)

    # --- what people ask for ---

    def stored(self) -> list[LiveSchedule]:
        """All that the ledger holds, the oldest first; LedgerError."""
        return [LiveSchedule.of(row) for row in self._core.queries.schedules()]

    def find(self, reference: str, visibility: Visibility = EVERYTHING) -> LiveSchedule:
        """What `reference` means; errors as for `find_schedule`."""
        return find_schedule(self._by_id.values(), reference, visibility)

    async def create(
        self,
        spec: ScheduleSpec,
        user: str | None = None,
        rights: Rights = ALL_RIGHTS,
    ) -> LiveSchedule:
        """Add a schedule; its job must be one that could be submitted now. All its jobs
        are those of `user`, if that is known.

        A repeated idempotency key gives the first schedule with that key.
        """
        job = spec.job.given_json()
        raw = msgspec.Raw(msgspec.json.encode(job))
        prepared = await self._requests.check(raw, user, rights)
        if user is not None:
            job["user"] = user
        earlier = self._with_key(spec, job)
        if earlier is not None:
            await self._core.committed()
            return earlier
        warnings = list(prepared.template.warnings)
        schedule_id = new_id("schedule")
        now = self._core.clock()
        self._emit(schedule_events.created(schedule_id, spec, job, warnings, now))
        schedule = self._by_id[schedule_id]
        await self._core.committed()
        return schedule

    def _with_key(self, spec: ScheduleSpec, job: dict[str, Any]) -> LiveSchedule | None:
        """The schedule with the idempotency key of `spec`; RefusedError if it is
        another one.
        """
        key = spec.idempotency_key
        found = [
            one
            for one in self._by_id.values()
            if key and one.has_key(key, job.get("user"))
        ]
        if not found:
            return None
        (schedule,) = found
        if not schedule.means(spec, job):
            raise RefusedError(
                f"idempotency_key {key!r} was used for another schedule"
                f" ({schedule.id}).",
                "Use a new key, or delete that schedule.",
            )
        return schedule

    async def change(self, reference: str, changes: ScheduleChanges) -> LiveSchedule:
        """Change a schedule, pause it or let it go on."""
        schedule = self.find(reference)
        values = changes.changes()
        cron = values.get("cron", schedule.cron)
        timezone = values.get("timezone", schedule.timezone)
        now = self._core.clock()
        if CronTimes(cron, timezone).next_after(now) is None:
            raise InvalidInputError.of("cron", "never comes", "write '0 3 * * *'")
        self._emit(schedule_events.changed(schedule, values, now))
        after = self._by_id[schedule.id]
        await self._core.committed()
        return after

    async def delete(self, reference: str) -> LiveSchedule:
        """Delete a schedule; returns what it was. Its jobs go on."""
        schedule = self.find(reference)
        self._emit(schedule_events.deleted(schedule, self._core.clock()))
        await self._core.committed()
        return schedule

    async def run_now(self, reference: str, key: str | None = None) -> str:
        """Submit its job now, whatever its times; returns the id of the job. The same
        `key` gives the first job with that key.

        Raises RefusedError if its last job has not ended and it skips such times.
        """
        schedule = self.find(reference)
        if key is not None:
            owned = owned_key(key, schedule.spec.get("user"))
            earlier = self._core.queries.jobs_by_idempotency_key([owned]).get(owned)
            if earlier is not None:
                row = self._core.queries.job(earlier) or {}
                labels: dict[str, str] = row.get("labels") or {}
                if labels.get(LABEL) != schedule.id:
                    raise RefusedError(
                        f"idempotency_key {key!r} was used for {earlier}.",
                        "Use a new key.",
                    )
                return earlier
        problem = self._overlap_problem(schedule)
        if problem:
            raise RefusedError(
                f"No job was started: {problem}, and two jobs of a schedule never run"
                " at once.",
                "Wait for that job, cancel it with `gpuyard cancel`, or let the new one"
                f" wait: `gpuyard schedule update {schedule.name} --overlap queue`.",
            )
        if schedule.id in self._busy:
            raise RefusedError(
                f"A job of {schedule.id} is being started.", "Look at `gpuyard jobs`."
            )
        self._busy.add(schedule.id)
        try:
            return await self._submit(schedule, None, key)
        finally:
            self._busy.discard(schedule.id)
            self._set_alarm()

    # --- its times ---

    def _set_alarm(self) -> None:
        """Look when the next time comes, and after LOOK_AGAIN_S at the latest; not when
        none will come.
        """
        if self._alarm:
            self._alarm.cancel()
        self._alarm = None
        now = self._core.clock()
        waits = [
            max(one.next_at - now, 0.0)
            for one in self._by_id.values()
            if one.next_at is not None and one.id not in self._busy
        ]
        if waits:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(min(*waits, LOOK_AGAIN_S), self.look)

    def look(self) -> None:
        """Deal with each time that has come."""
        if self._core.is_stopping:
            # The server may stay after all.
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(_RETRY_S, self.look)
            return
        now = self._core.clock()
        for schedule in list(self._by_id.values()):
            if schedule.id in self._busy or schedule.next_at is None:
                continue
            if now < schedule.seen_at - SET_BACK_S:
                self._emit(schedule_events.set_back(schedule, now))
            elif schedule.next_at <= now:
                self._busy.add(schedule.id)
                self._core.spawn(self._come_due(schedule), f"schedule {schedule.id}")
        self._set_alarm()

    async def _come_due(self, schedule: LiveSchedule) -> None:
        try:
            await self._deal_with(schedule)
        except _NoLongerDueError:
            pass
        except (LedgerError, ProviderError) as error:
            await self._delay(schedule, str(error))
        except Exception as error:
            log.exception("a schedule must wait", schedule=schedule.id)
            await self._delay(schedule, repr(error))
        finally:
            self._busy.discard(schedule.id)
            self._set_alarm()

    async def _delay(self, schedule: LiveSchedule, why: str) -> None:
        """Wait, first for a moment, then for longer; the time stays due."""
        is_new = self._delays.get(schedule.id) != why
        self._delays[schedule.id] = why
        if is_new:
            log.warning("a schedule must wait", schedule=schedule.id, why=why)
        await asyncio.sleep(_RETRY_S if is_new else LOOK_AGAIN_S)

    async def _deal_with(self, schedule: LiveSchedule) -> None:
        """Submit the job of the newest time that has come, or skip that time."""
        now = self._core.clock()
        due_at = schedule.due_at(now)
        if due_at is None:
            return
        if now - due_at > schedule.useful_s:
            limit = format_duration(schedule.useful_s)
            why = self._delays.pop(schedule.id, "no server was there")
            problem = f"it could not be started within {limit}: {why}"
            await self._skip(schedule, due_at, SkipReason.MISSED, problem)
            return
        problem = self._overlap_problem(schedule)
        if problem:
            await self._skip(schedule, due_at, SkipReason.OVERLAP, problem)
            return
        try:
            await self._submit(schedule, due_at)
        except (LedgerError, _NoLongerDueError):
            raise
        except GpuyardError as error:
            if isinstance(error, ProviderError) and error.error_code in TRANSIENT:
                raise
            await self._skip(schedule, due_at, SkipReason.REFUSED, str(error))

    def _overlap_problem(self, schedule: LiveSchedule) -> str:
        """Why there can be no job now; empty if there can."""
        live = self._live_jobs(schedule)
        if not live or schedule.overlap == Overlap.CANCEL_PREVIOUS:
            return ""
        if schedule.overlap == Overlap.SKIP:
            return f"the last job, {live[-1].id}, has not ended"
        waiting = [job for job in live if not job.attempts]
        return f"the last job, {waiting[-1].id}, has not started" if waiting else ""

    def _live_jobs(self, schedule: LiveSchedule) -> list[LiveJob]:
        """Its jobs that have not ended, the oldest first."""
        jobs = self._core.view.jobs
        live = [job_id for job_id in self._jobs.get(schedule.id, ()) if job_id in jobs]
        self._jobs[schedule.id] = live
        return [jobs[job_id] for job_id in live]

    async def _cancel_previous(self, schedule: LiveSchedule) -> None:
        """Cancel all its jobs but the newest, if they make room for that; it waits for
        their ends.
        """
        if schedule.overlap != Overlap.CANCEL_PREVIOUS:
            return
        for job in self._live_jobs(schedule)[:-1]:
            try:
                await self._requests.cancel(job.id)
            except GpuyardError as error:
                log.warning("a job is not cancelled", job=job.id, error=str(error))

    async def _submit(
        self, schedule: LiveSchedule, due_at: float | None, key: str | None = None
    ) -> str:
        """Submit its job for this time, or because somebody asked; returns its id.

        Whatever raises, nothing was submitted.
        """
        live = [job.id for job in self._live_jobs(schedule)]
        body = job_of(schedule, live, self._core.clock() if due_at is None else due_at)
        if key is not None:
            body["idempotency_key"] = key
        user = body.pop("user", None)
        if user is not None:
            self.check_submits(user, body.get("project"))
        raw = msgspec.Raw(msgspec.json.encode(body))

        def step(jobs: Sequence[PreparedJob], now: float) -> list[Event]:
            """Only if nobody has changed it meanwhile."""
            if self._by_id.get(schedule.id) != schedule:
                raise _NoLongerDueError(
                    f"{schedule.id} was changed meanwhile.", "Try again."
                )
            event = schedule_events.started(schedule, jobs[0].id, due_at, now)
            self._jobs.setdefault(schedule.id, []).append(jobs[0].id)
            self._fold(event)
            return [event]

        (job,) = await self._requests.accept([raw], step, user)
        self._delays.pop(schedule.id, None)
        # Only now: had it been refused, the last one should go on. If we are killed
        # here, the next server cancels them.
        await self._cancel_previous(schedule)
        return job.id

    async def _skip(
        self, schedule: LiveSchedule, due_at: float, reason: SkipReason, problem: str
    ) -> None:
        if self._by_id.get(schedule.id) != schedule:
            return
        log.info(
            "a time of a schedule has no job", schedule=schedule.id, reason=reason.value
        )
        now = self._core.clock()
        self._emit(schedule_events.skipped(schedule, due_at, reason, problem, now))
        await self._core.committed(own_only=True)

    # --- memory ---

    def _emit(self, event: Event) -> None:
        self._core.emit([event])
        self._fold(event)

    def _fold(self, event: Event) -> None:
        """Remember what the event says of a schedule."""
        for change in event.changes:
            if change.values is None:
                del self._by_id[change.key]
                self._jobs.pop(change.key, None)
                self._delays.pop(change.key, None)
                continue
            before = self._by_id.get(change.key)
            row = asdict(before) if before else {"id": change.key}
            self._by_id[change.key] = LiveSchedule.of({**row, **change.values})
        self._set_alarm()


def find_schedule(
    schedules: Collection[LiveSchedule],
    reference: str,
    visibility: Visibility = EVERYTHING,
) -> LiveSchedule:
    """The schedule of this id, the newest of this name, or the only one whose id ends
    so, among those that exist for who asks; of a name, its own comes first.

    Raises NotFoundError for no match, InvalidInputError for several.
    """
    seen = [one for one in schedules if visibility.sees(one.spec.get("project"))]
    newest_first = sorted(seen, key=lambda one: one.id, reverse=True)
    named = [one for one in newest_first if reference in (one.id, one.name)]
    own = [one for one in named if one.spec.get("user") == visibility.user]
    if named:
        return (own or named)[0]
    found = [one for one in newest_first if reference and one.id.endswith(reference)]
    if not found:
        raise NotFoundError(
            f"There is no schedule {reference!r}.", "`gpuyard schedules` lists them."
        )
    if len(found) > 1:
        ids = ", ".join(one.id for one in found)
        raise InvalidInputError.of(
            "schedule", f"{reference!r} could be {ids}", "give more of the id"
        )
    return found[0]
