"""The copy of the output of an external queue: it is whole, its limit, and its end."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

import pytest

from gpuyard.config.paths import Home
from gpuyard.controller import copied_logs, leftovers
from gpuyard.controller.copied_logs import CopiedLogs
from gpuyard.controller.external_queues import ExternalQueues
from gpuyard.controller.leftovers import Leftovers
from gpuyard.controller.observed_runs import ObservedRuns
from gpuyard.domain.jobconfig import JobResult, JobStatus
from gpuyard.domain.wire import SeriesPoint
from gpuyard.providers.base import OutputPart
from gpuyard.providers.configured import Providers
from gpuyard.providers.program_use import ProgramUse
from gpuyard.scheduler.attempts import LiveAttempt
from tests.support.controlled import Controlled
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio
LINES = [b"line %06d %s\n" % (number, b"x" * 100) for number in range(30_000)]


class Queue:
    """An external queue whose job has printed `output`, and ends on a word."""

    poll_s = 0.02
    ends_with_server = False
    agents_report = False
    answer_age_s = 0.0

    def __init__(self, output: bytes = b"".join(LINES)) -> None:
        self.over = asyncio.Event()
        self.reads = 0
        self.forgotten: list[str] = []
        self._output = output

    async def stream_output(self, *_: object, mark: str) -> AsyncIterator[OutputPart]:
        self.reads += 1
        yield OutputPart(self._output, str)
        await self.over.wait()

    async def checkpoints(self, _: str) -> list[object]:
        return []

    async def bring_back(self, _: str) -> None:
        pass

    async def forget_job(self, reference: str) -> None:
        self.forgotten.append(reference)


class Rotating(Queue):
    """One that gives one line after each mark, which is its number; what is before it
    cannot be read any more. It waits behind line 3, and goes on when it is over.
    """

    async def stream_output(self, *_: object, mark: str) -> AsyncIterator[OutputPart]:
        for number in range(int(mark or 0), 6):
            if number == 3:
                await self.over.wait()
            yield OutputPart(LINES[number], partial(str, number + 1))


class Measured(Queue):
    """One that has printed nothing, and knows what its job uses."""

    def __init__(self) -> None:
        super().__init__(b"")

    async def use_of(self, _: str) -> ProgramUse:
        return ProgramUse(1.0, 50.0)


def logs_of(instance: Controlled, attempt: LiveAttempt, queue: Queue) -> CopiedLogs:
    return CopiedLogs(
        instance.core,
        instance.controller.reports,
        {attempt.provider: queue},  # type: ignore[dict-item]
        instance.blobs,
        Home(instance.folder).logs / "attempts",
        instance.controller.secrets,
        instance.folder,
    )


async def test_another_server_goes_on_at_the_mark(instance: Controlled) -> None:
    job_id = await instance.submit()
    await instance.until(job_id, "running")
    attempt = instance.core.view.attempts[await instance.begun(job_id)]
    queue = Rotating()
    first = logs_of(instance, attempt, queue)
    copy = first.path(attempt.id)
    first.follow(attempt)
    await eventually(lambda: copy.exists() and copy.read_bytes() == b"".join(LINES[:3]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copied_logs, "_LAST_READ_TIMEOUT_S", 0.0)
        assert await first.finish(attempt) == (False, "")
    # It was killed after it had written a part, and before it had noted where it ends.
    with copy.open("ab") as file:
        file.write(LINES[3][:20])
    queue.over.set()
    second = logs_of(instance, attempt, queue)
    assert await second.finish(attempt) == (True, "")
    assert copy.read_bytes() == b"".join(LINES[:6])
    assert not copy.with_suffix(".mark").exists()


async def test_what_a_job_uses_says_nothing_of_its_progress(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a resumed one, that of before is shown until it has some of its own."""
    job_id = await instance.submit()
    await instance.until(job_id, "running")
    attempt = instance.core.view.attempts[await instance.begun(job_id)]
    instance.core.progress[job_id] = {"step": 900}
    seen: list[str] = []

    def add(_: LiveAttempt, points: list[SeriesPoint]) -> None:
        seen.extend(point.name for point in points)

    monkeypatch.setattr(instance.controller.reports, "_add_points", add)
    queue = Measured()
    copied = logs_of(instance, attempt, queue)
    copied.follow(attempt)
    await eventually(lambda: "system/memory_mb" in seen, "its memory to be measured")
    assert instance.core.progress[job_id] == {"step": 900}
    queue.over.set()
    assert await copied.finish(attempt) == (True, "")
    assert copied.take_usage(attempt.id) == {"cpu_s": 1.0, "peak_mb": 50.0}


async def test_output_that_is_late_is_fetched_after_the_end(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copied_logs, "_LAST_READ_TIMEOUT_S", 0.1)
    monkeypatch.setattr(leftovers, "_FIRST_PAUSE_S", 0.02)
    job_id = await instance.submit()
    await instance.until(job_id, "running")
    attempt_id = await instance.begun(job_id)
    attempt = replace(instance.core.view.attempts[attempt_id], provider_ref="ref")
    queue = Rotating()
    queues = ExternalQueues(
        instance.core,
        instance.controller.launching,
        instance.controller.requests,
        Providers({attempt.provider: queue}),  # type: ignore[dict-item]
        logs_of(instance, attempt, queue),
        instance.controller.health,
        ObservedRuns(instance.folder / "runs"),
    )
    result = JobResult("ref", JobStatus.COMPLETED, exit_code=0)
    queues._answers._finish_soon(attempt, result)
    await instance.until(job_id, "completed")
    assert queue.forgotten == [], "its output is still there"
    needs_machine = queues.leftovers.needs_machine
    await eventually(lambda: needs_machine(attempt.id), "the rest to be fetched")
    queue.over.set()
    await eventually(lambda: queue.forgotten == ["ref"], "it to be forgotten")
    await eventually(lambda: not needs_machine(attempt.id), "nothing to be needed")
    copy = Home(instance.folder).logs / "attempts" / f"{attempt.id}.log"
    assert copy.read_bytes() == b"".join(LINES[:6])


async def test_another_server_fetches_what_is_late(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copied_logs, "_LAST_READ_TIMEOUT_S", 0.1)
    job_id = await instance.submit()
    await instance.until(job_id, "running")
    attempt = instance.core.view.attempts[await instance.begun(job_id)]
    queue = Rotating()
    copied = logs_of(instance, attempt, queue)
    assert await copied.finish(attempt) == (False, "")
    await instance.finish(job_id)
    await instance.until(job_id)
    queue.over.set()
    later = Leftovers(
        instance.core,
        {attempt.provider: queue},  # type: ignore[dict-item]
        logs_of(instance, attempt, queue),
    )
    (row,) = instance.core.queries.newest_ended(5, attempt.provider)
    await later.forget_ended(attempt.provider, [{**row, "provider_ref": "ref"}])
    await eventually(lambda: queue.forgotten == ["ref"], "it to be forgotten")
    assert copied.path(attempt.id).read_bytes() == b"".join(LINES[:6])


async def test_an_end_is_told_when_it_is_known_and_the_output_is_read_once(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copied_logs, "_PAUSE_S", 3600.0)
    monkeypatch.setattr(copied_logs, "_LAST_READ_TIMEOUT_S", 3600.0)
    job_id = await instance.submit()
    await instance.until(job_id, "running")
    attempt = instance.core.view.attempts[await instance.begun(job_id)]
    queue = Queue(b"done\n")
    queue.over.set()
    copied = logs_of(instance, attempt, queue)
    copied.follow(attempt)
    copy = copied.path(attempt.id)
    await eventually(lambda: copy.exists() and copy.read_bytes(), "the output to come")
    assert await asyncio.wait_for(copied.finish(attempt), 30) == (True, "")
    assert (copy.read_bytes(), queue.reads) == (b"done\n", 1)
    await instance.finish(job_id)


async def test_only_the_end_is_kept_and_read(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copied_logs, "_PAUSE_S", 0.02)
    job_id = await instance.submit(log_limit_gb=1 / 1024)
    await instance.until(job_id, "running")
    attempt = instance.core.view.attempts[await instance.begun(job_id)]
    queue = Queue()
    copied = logs_of(instance, attempt, queue)
    copied.follow(attempt)
    copy = copied.path(attempt.id)
    await eventually(
        lambda: instance.job(job_id)["warnings"], "the job to be told of the limit"
    )
    assert copy.stat().st_size == sum(map(len, LINES))
    assert copy.stat().st_blocks * 512 < 2 << 20
    queue.over.set()
    assert await copied.finish(attempt) == (True, "")

    await instance.finish(job_id)
    await instance.until(job_id)
    parts = [part.data async for part in instance.controller.logs.read(job_id)]
    note, *lines = b"".join(parts).splitlines(keepends=True)
    assert note.startswith(b"[gpuyard: the log has reached its limit of 1 MB")
    assert lines == LINES[-len(lines) :]
    last = [part.data async for part in instance.controller.logs.read(job_id, lines=2)]
    assert b"".join(last) == b"".join(LINES[-2:])
