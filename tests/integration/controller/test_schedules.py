"""Schedules submit their jobs at their times, under a clock that the test sets, and
across crashes.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpuyard.controller.controller import Controller
from gpuyard.controller.schedule_events import LiveSchedule
from gpuyard.domain.carried_environment import CarriedEnvironment
from gpuyard.domain.errors import (
    DiskFullError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
)
from gpuyard.domain.events import Event
from gpuyard.domain.schedules import ScheduleChanges, ScheduleSpec
from gpuyard.domain.validation import parse_model
from gpuyard.storage.code_tree import CodeEntry, CodeTree
from tests.support.controlled import Controlled
from tests.support.ledger import failing_commits
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio
# Half a minute before midnight.
START = datetime(2026, 3, 1, 23, 59, 30, tzinfo=UTC).timestamp()
MINUTE = 60.0
HOUR = 60 * MINUTE
DAY = 24 * HOUR


class Scheduled(Controlled):
    """An instance whose clock stands still until the test sets it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, **settings)
        self.now = START

    def extend(self, controller: Controller) -> None:
        controller.core.clock = lambda: self.now

    async def _forsake(self) -> None:
        await self.controller.schedules.close()
        await super()._forsake()

    async def add(self, cron: str, **fields: Any) -> str:
        document = {"cron": cron, "job": {"command": ["true"]}, **fields}
        spec = parse_model(ScheduleSpec, document)
        return (await self.controller.schedules.create(spec)).id

    async def pass_to(self, moment: float) -> None:
        """Set the clock, and let everything that is due happen."""
        self.now = moment
        self.controller.schedules.look()
        await self.settled()

    def schedule(self, reference: str) -> LiveSchedule:
        """As the ledger has it."""
        stored = self.controller.schedules.stored()
        (found,) = [one for one in stored if one.id == reference]
        return found

    def jobs(self) -> list[str]:
        """The ids of all jobs, the oldest first."""
        rows = self.ledger.queries.jobs_page(limit=1000)
        return [row["id"] for row in rows][::-1]

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What the journal says about this kind of event."""
        rows = self.ledger.queries.events_after(0, limit=10_000)
        return [row["info"] for row in rows if row["kind"] == kind]


@pytest.fixture
async def scheduled(tmp_path: Path) -> AsyncIterator[Scheduled]:
    made = Scheduled(tmp_path)
    await made.start()
    yield made
    await made.settled()
    made.check()
    await made.stop()


async def test_every_minute_a_job(scheduled: Scheduled) -> None:
    schedule_id = await scheduled.add("* * * * *", overlap="queue")
    midnight = START + 30
    await scheduled.pass_to(midnight - 1)
    assert scheduled.jobs() == []
    for minute in range(3):
        await scheduled.pass_to(midnight + minute * MINUTE + 0.5)
        await scheduled.pass_to(midnight + minute * MINUTE + 20)
        *_, job_id = scheduled.jobs()
        assert scheduled.job(job_id)["labels"] == {"schedule": schedule_id}
        await scheduled.finish(job_id)
        await scheduled.until(job_id)
    assert len(scheduled.jobs()) == 3
    schedule = scheduled.schedule(schedule_id)
    assert schedule.last_job_id == scheduled.jobs()[-1]
    assert schedule.next_at == midnight + 3 * MINUTE
    due = [info["due_at"] for info in scheduled.events("schedule.started")]
    assert due == [midnight + minute * MINUTE for minute in range(3)]


async def test_each_job_has_its_deadline_so_long_after_its_time(
    scheduled: Scheduled,
) -> None:
    midnight = START + 30
    schedule_id = await scheduled.add("0 * * * *", deadline_s="30m", overlap="queue")
    await scheduled.pass_to(midnight + 60)
    (first,) = scheduled.jobs()
    assert scheduled.job(first)["deadline"] == midnight + 30 * MINUTE
    await scheduled.restart()
    asked = await scheduled.controller.schedules.run_now(schedule_id)
    assert scheduled.job(asked)["deadline"] == midnight + 31 * MINUTE
    for job_id in (first, asked):
        await scheduled.finish(job_id)
        await scheduled.until(job_id)
    # A job that could only be late is of no use.
    await scheduled.pass_to(midnight + HOUR + 31 * MINUTE)
    (skip,) = scheduled.events("schedule.skipped")
    assert skip["reason"] == "missed"
    assert "could not be started within 30m" in skip["problem"]
    without = parse_model(ScheduleChanges, {"deadline_s": None})
    changed = await scheduled.controller.schedules.change(schedule_id, without)
    assert changed.deadline_s is None
    await scheduled.pass_to(midnight + 2 * HOUR)
    assert scheduled.job(scheduled.jobs()[-1])["deadline"] is None


async def test_while_its_last_job_runs_a_time_is_skipped_and_told(
    scheduled: Scheduled,
) -> None:
    schedule_id = await scheduled.add("* * * * *")
    await scheduled.pass_to(START + MINUTE)
    (job_id,) = scheduled.jobs()
    await scheduled.pass_to(START + 2 * MINUTE)
    assert scheduled.jobs() == [job_id]
    (skip,) = scheduled.events("schedule.skipped")
    assert skip["reason"] == "overlap"
    assert skip["due_at"] == START + 30 + MINUTE
    problem = f"the last job, {job_id}, has not ended"
    assert scheduled.schedule(schedule_id).problem == skip["problem"] == problem
    await scheduled.finish(job_id)
    await scheduled.until(job_id)
    await scheduled.pass_to(START + 3 * MINUTE)
    assert len(scheduled.jobs()) == 2
    assert scheduled.schedule(schedule_id).problem is None


async def test_queued_jobs_wait_for_the_last_one_and_at_most_one_does(
    scheduled: Scheduled,
) -> None:
    await scheduled.add("* * * * *", overlap="queue")
    for minute in range(1, 5):
        await scheduled.pass_to(START + minute * MINUTE)
    first, second = scheduled.jobs()
    assert scheduled.job(second)["depends_on"] == [first]
    assert len(scheduled.events("schedule.skipped")) == 2
    await scheduled.finish(first, exit_code=1)
    await scheduled.until(first)
    await scheduled.begun(second)


async def test_a_job_waits_for_all_that_run_and_not_only_for_the_last(
    scheduled: Scheduled,
) -> None:
    await scheduled.add("* * * * *", overlap="queue")
    await scheduled.pass_to(START + MINUTE)
    await scheduled.pass_to(START + 2 * MINUTE)
    first, second = scheduled.jobs()
    await scheduled.controller.requests.cancel(second)
    await scheduled.pass_to(START + 3 * MINUTE)
    *_, third = scheduled.jobs()
    assert scheduled.job(third)["depends_on"] == [first]


async def test_a_job_goes_on_when_its_successor_is_refused(
    scheduled: Scheduled,
) -> None:
    store = scheduled.controller.secrets.sources.store
    store.put("KEY", "value", START)
    secret = {"command": ["true"], "secrets": {"KEY": "KEY"}}
    await scheduled.add("* * * * *", overlap="cancel-previous", job=secret)
    await scheduled.pass_to(START + MINUTE)
    (first,) = scheduled.jobs()
    await scheduled.until(first, "running")
    store.remove("KEY")
    await scheduled.pass_to(START + 2 * MINUTE)
    assert scheduled.jobs() == [first]
    assert scheduled.job(first)["state"] == "running"


async def test_the_previous_job_is_cancelled_before_the_next_one_starts(
    scheduled: Scheduled,
) -> None:
    await scheduled.add("* * * * *", overlap="cancel-previous")
    await scheduled.pass_to(START + MINUTE)
    (first,) = scheduled.jobs()
    await scheduled.until(first, "running")
    await scheduled.pass_to(START + 2 * MINUTE)
    _, second = scheduled.jobs()
    assert scheduled.job(second)["depends_on"] == [first]
    assert (await scheduled.until(first))["state"] == "cancelled"
    await scheduled.begun(second)


@pytest.mark.parametrize(
    ("away_s", "jobs", "skipped"), [(HOUR - 1, 1, 0), (HOUR + 1, 0, 1)]
)
async def test_a_time_that_passed_without_a_server_is_made_up_for_within_an_hour(
    scheduled: Scheduled, away_s: float, jobs: int, skipped: int
) -> None:
    schedule_id = await scheduled.add("0 0 * * *")
    await scheduled.crash()
    scheduled.now = START + 30 + away_s
    await scheduled.start()
    await scheduled.pass_to(scheduled.now)
    assert len(scheduled.jobs()) == jobs
    missed = scheduled.events("schedule.skipped")
    assert [info["reason"] for info in missed] == ["missed"] * skipped
    assert scheduled.schedule(schedule_id).next_at == START + 30 + DAY


async def test_of_a_thousand_times_that_passed_the_last_one_counts(
    scheduled: Scheduled,
) -> None:
    """Whether the server was down, the host asleep, or the clock was set forward."""
    schedule_id = await scheduled.add("* * * * *")
    await scheduled.pass_to(START + 400 * DAY)
    assert len(scheduled.jobs()) == 1
    assert scheduled.schedule(schedule_id).seen_at == START + 400 * DAY - 30
    (started,) = scheduled.events("schedule.started")
    assert started["due_at"] == START + 400 * DAY - 30


async def test_a_clock_that_is_set_back_neither_repeats_a_time_nor_stops_the_schedule(
    scheduled: Scheduled,
) -> None:
    schedule_id = await scheduled.add("0 * * * *")
    await scheduled.pass_to(START + MINUTE)
    (job_id,) = scheduled.jobs()
    await scheduled.finish(job_id)
    await scheduled.until(job_id)
    await scheduled.pass_to(START - HOUR)
    await scheduled.pass_to(START + MINUTE)
    assert scheduled.jobs() == [job_id]
    # It was a day ahead all the time, and is mended.
    await scheduled.pass_to(START - DAY)
    assert scheduled.schedule(schedule_id).next_at == START + 30 - DAY
    await scheduled.pass_to(START - DAY + MINUTE)
    assert len(scheduled.jobs()) == 2


async def test_a_crash_at_any_moment_loses_no_time_and_doubles_none(
    scheduled: Scheduled,
) -> None:
    schedule_id = await scheduled.add("0 * * * *")
    for steps in range(0, 24, 3):
        scheduled.now += HOUR
        before = scheduled.jobs()
        scheduled.controller.schedules.look()
        for _ in range(steps):
            await asyncio.sleep(0)
        await scheduled.restart()
        count = len(before) + 1
        await eventually(lambda count=count: len(scheduled.jobs()) == count, "the job")
        await scheduled.pass_to(scheduled.now)
        (job_id,) = set(scheduled.jobs()) - set(before)
        schedule = scheduled.schedule(schedule_id)
        assert schedule.last_job_id == job_id
        assert schedule.next_at is not None
        assert schedule.next_at > scheduled.now
        await scheduled.finish(job_id)
        await scheduled.until(job_id)


async def test_a_job_and_the_step_of_its_schedule_are_written_as_one(
    scheduled: Scheduled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is added to the ledger in one call is written whole or not at all."""
    await scheduled.add("0 0 * * *")
    writer = scheduled.core.writer
    add_events = writer.add_events
    added: list[list[str]] = []

    def record(events: Sequence[Event], *, can_wait: bool = False) -> None:
        added.append([event.kind.value for event in events])
        add_events(events, can_wait=can_wait)

    monkeypatch.setattr(writer, "add_events", record)
    await scheduled.pass_to(START + MINUTE)
    assert ["job.submitted", "schedule.started"] in added


async def test_a_full_disk_delays_a_time(scheduled: Scheduled) -> None:
    schedule_id = await scheduled.add("0 0 * * *")
    scheduled.now = START + MINUTE
    with failing_commits(scheduled.ledger.engine):
        with pytest.raises(DiskFullError):
            await scheduled.controller.schedules.run_now(schedule_id)
        assert scheduled.schedule(schedule_id).last_job_id is None
    await eventually(scheduled.jobs, "the job")
    await scheduled.settled()
    assert len(scheduled.jobs()) == 1


async def test_a_job_that_can_no_longer_be_submitted_is_told_and_tried_next_time(
    scheduled: Scheduled,
) -> None:
    secret = {"command": ["true"], "secrets": {"KEY": "KEY"}}
    with pytest.raises(InvalidInputError, match="KEY"):
        await scheduled.add("0 * * * *", job=secret)
    store = scheduled.controller.secrets.sources.store
    store.put("KEY", "value", START)
    schedule_id = await scheduled.add("0 * * * *", job=secret)
    store.remove("KEY")
    await scheduled.pass_to(START + MINUTE)
    assert scheduled.jobs() == []
    (skip,) = scheduled.events("schedule.skipped")
    assert skip["reason"] == "refused"
    assert "KEY" in (scheduled.schedule(schedule_id).problem or "")
    store.put("KEY", "value", START)
    await scheduled.pass_to(START + MINUTE + HOUR)
    assert len(scheduled.jobs()) == 1


async def test_times_that_come_while_it_is_paused_do_not_count(
    scheduled: Scheduled,
) -> None:
    schedule_id = await scheduled.add("0 * * * *")
    schedules = scheduled.controller.schedules
    paused = await schedules.change(schedule_id, ScheduleChanges(state="paused"))
    assert paused.next_at is None
    assert schedules.idle
    await scheduled.pass_to(START + HOUR)
    await schedules.change(schedule_id, ScheduleChanges(state="active"))
    await scheduled.pass_to(START + HOUR + 1)
    assert scheduled.jobs() == []
    assert not schedules.idle
    await scheduled.pass_to(START + 2 * HOUR)
    assert len(scheduled.jobs()) == 1


async def test_a_change_that_means_no_other_times_keeps_a_time_that_is_due(
    scheduled: Scheduled,
) -> None:
    schedule_id = await scheduled.add("0 0 * * *")
    scheduled.now = START + MINUTE
    schedules = scheduled.controller.schedules
    await schedules.change(schedule_id, ScheduleChanges(overlap="queue"))
    await scheduled.pass_to(START + MINUTE)
    assert len(scheduled.jobs()) == 1


async def test_run_now_starts_one_job_and_leaves_the_next_time(
    scheduled: Scheduled,
) -> None:
    schedule_id = await scheduled.add("0 0 * * *")
    schedules = scheduled.controller.schedules
    job_id = await schedules.run_now(schedule_id, "key")
    assert await schedules.run_now(schedule_id, "key") == job_id
    assert scheduled.schedule(schedule_id).next_at == START + 30
    with pytest.raises(RefusedError, match=f"the last job, {job_id}, has not ended"):
        await schedules.run_now(schedule_id)
    await scheduled.finish(job_id)
    await scheduled.until(job_id)
    await scheduled.pass_to(START + MINUTE)
    assert len(scheduled.jobs()) == 2


async def test_a_deleted_schedule_leaves_its_jobs(scheduled: Scheduled) -> None:
    schedule_id = await scheduled.add("0 0 * * *", idempotency_key="nightly")
    schedules = scheduled.controller.schedules
    job_id = await schedules.run_now(schedule_id)
    await schedules.delete(schedule_id)
    with pytest.raises(NotFoundError, match="gpuyard schedules"):
        schedules.find(schedule_id)
    await scheduled.pass_to(START + MINUTE)
    assert scheduled.jobs() == [job_id]
    assert await scheduled.add("0 0 * * *", idempotency_key="nightly") != schedule_id


async def test_an_idempotency_key_is_one_schedule(scheduled: Scheduled) -> None:
    first = await scheduled.add("0 0 * * *", idempotency_key="nightly")
    assert await scheduled.add("0 0 * * *", idempotency_key="nightly") == first
    with pytest.raises(RefusedError, match=f"used for another schedule .{first}"):
        await scheduled.add("0 1 * * *", idempotency_key="nightly")


async def test_a_schedule_is_found_by_id_ending_and_name(scheduled: Scheduled) -> None:
    job = {"command": ["true"], "name": "nightly"}
    first = await scheduled.add("0 0 * * *", job=job)
    second = await scheduled.add("0 0 * * *", job=job)
    schedules = scheduled.controller.schedules
    assert schedules.find(first[-8:]).id == schedules.find(first).id == first
    assert schedules.find("nightly").id == second
    with pytest.raises(NotFoundError, match="gpuyard schedules"):
        schedules.find("weekly")
    # Of more than sixteen, two end with the same digit.
    ids = [first, second] + [
        await scheduled.add("0 0 * * *", job=job) for _ in range(15)
    ]
    (ending, _), *_ = Counter(one[-1] for one in ids).most_common()
    with pytest.raises(InvalidInputError, match="give more of the id"):
        schedules.find(ending)


async def test_code_and_environment_stay_as_long_as_a_schedule_needs_them(
    scheduled: Scheduled,
) -> None:
    submissions = scheduled.controller.submissions
    (file,) = submissions.code.put_files([b"print('nightly')"])
    tree = CodeTree([CodeEntry("nightly.py", file)])
    code = submissions.code.put(tree)
    environment = submissions.environments.put(CarriedEnvironment({"A": "1"}))
    job = {
        "command": ["true"],
        "workdir": "/",
        "submitted_code": code,
        "carried_environment": environment,
    }
    schedule_id = await scheduled.add("0 0 * * *", job=job)
    submissions.code._clock = submissions.environments._clock = lambda: 1e11
    await scheduled.controller.retention.run()
    assert submissions.code.get(code) == tree
    assert submissions.environments.get(environment).variables == {"A": "1"}
    await scheduled.controller.schedules.delete(schedule_id)
    removed = await scheduled.controller.retention.run()
    assert (removed["code"], removed["environments"]) == (1, 1)
