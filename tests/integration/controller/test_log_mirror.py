"""The copy of the output of an external queue stays below the limit of its job."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gpuyard.config.paths import Home
from gpuyard.controller import log_mirror
from gpuyard.controller.log_mirror import LogMirror
from gpuyard.domain.jobconfig import JobResult, JobStatus
from tests.support.controlled import Controlled
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio
LINES = [b"line %06d %s\n" % (number, b"x" * 100) for number in range(30_000)]


class Queue:
    """An external queue whose job has printed LINES, and ends on a word."""

    def __init__(self) -> None:
        self.over = asyncio.Event()

    async def stream_logs(self, *_: object, **__: object) -> AsyncIterator[bytes]:
        yield b"".join(LINES)
        await self.over.wait()

    async def get_job_status(self, reference: str) -> JobResult:
        return JobResult(reference, JobStatus.COMPLETED)

    async def checkpoints(self, _: str) -> list[object]:
        return []

    async def bring_back(self, _: str) -> None:
        pass


async def test_only_the_end_is_kept_and_read(
    instance: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_mirror, "_PAUSE_S", 0.02)
    job_id = await instance.submit(log_limit_gb=1 / 1024)
    await instance.until(job_id, "running")
    attempt = instance.core.view.attempts[await instance.begun(job_id)]
    queue = Queue()
    mirror = LogMirror(
        instance.core,
        instance.controller.reports,
        {attempt.provider: queue},  # type: ignore[dict-item]
        instance.blobs,
        Home(instance.folder).logs / "attempts",
        instance.controller.secrets,
    )
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
