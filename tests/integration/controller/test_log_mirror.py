"""The copy of the output of an external queue: its limit, and its end."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gpuyard.config.paths import Home
from gpuyard.controller import log_mirror
from gpuyard.controller.log_mirror import LogMirror
from gpuyard.scheduler.view import LiveAttempt
from tests.support.controlled import Controlled
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio
LINES = [b"line %06d %s\n" % (number, b"x" * 100) for number in range(30_000)]


class Queue:
    """An external queue whose job has printed `output`, and ends on a word."""

    poll_s = 0.02

    def __init__(self, output: bytes = b"".join(LINES)) -> None:
        self.over = asyncio.Event()
        self.reads = 0
        self._output = output

    async def stream_logs(self, *_: object, **__: object) -> AsyncIterator[bytes]:
        self.reads += 1
        yield self._output
        await self.over.wait()

    async def checkpoints(self, _: str) -> list[object]:
        return []

    async def bring_back(self, _: str) -> None:
        pass


def mirror_of(instance: Controlled, attempt: LiveAttempt, queue: Queue) -> LogMirror:
    return LogMirror(
        instance.core,
        instance.controller.reports,
        {attempt.provider: queue},  # type: ignore[dict-item]
        instance.blobs,
        Home(instance.folder).logs / "attempts",
        instance.controller.secrets,
    )


async def test_an_end_is_told_when_it_is_known_and_the_output_is_read_once(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_mirror, "_PAUSE_S", 3600.0)
    monkeypatch.setattr(log_mirror, "_LAST_READ_TIMEOUT_S", 3600.0)
    job_id = await instance.submit()
    await instance.until(job_id, "running")
    attempt = instance.core.view.attempts[await instance.begun(job_id)]
    queue = Queue(b"done\n")
    queue.over.set()
    mirror = mirror_of(instance, attempt, queue)
    mirror.follow(attempt)
    copy = mirror.path(attempt.id)
    await eventually(lambda: copy.exists() and copy.read_bytes(), "the output to come")
    assert await asyncio.wait_for(mirror.finish(attempt), 30) == (True, "")
    assert (copy.read_bytes(), queue.reads) == (b"done\n", 1)
    await instance.finish(job_id)


async def test_only_the_end_is_kept_and_read(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_mirror, "_PAUSE_S", 0.02)
    job_id = await instance.submit(log_limit_gb=1 / 1024)
    await instance.until(job_id, "running")
    attempt = instance.core.view.attempts[await instance.begun(job_id)]
    queue = Queue()
    mirror = mirror_of(instance, attempt, queue)
    mirror.follow(attempt)
    copy = mirror.path(attempt.id)
    await eventually(
        lambda: instance.job(job_id)["warnings"], "the job to be told of the limit"
    )
    assert copy.stat().st_size == sum(map(len, LINES))
    assert copy.stat().st_blocks * 512 < 2 << 20
    queue.over.set()
    assert await mirror.finish(attempt) == (True, "")

    await instance.finish(job_id)
    await instance.until(job_id)
    parts = [part.data async for part in instance.controller.logs.read(job_id)]
    note, *lines = b"".join(parts).splitlines(keepends=True)
    assert note.startswith(b"[gpuyard: the log has reached its limit of 1 MB")
    assert lines == LINES[-len(lines) :]
    last = [part.data async for part in instance.controller.logs.read(job_id, lines=2)]
    assert b"".join(last) == b"".join(LINES[-2:])
