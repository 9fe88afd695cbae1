"""Mirrors: the output of attempts on engines, followed as it is written and kept here, and what it tells of progress.

An engine forgets a job soon after its end, and what it printed with it.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO

import structlog

from gpuyard.controller.core import Core
from gpuyard.controller.reports import Reports
from gpuyard.domain import wire
from gpuyard.domain.errors import JobNotFoundError, LedgerError, ProviderError
from gpuyard.domain.jobconfig import JobStatus
from gpuyard.insight.progress import Point, ProgressReader
from gpuyard.providers.base import TRANSIENT, BringsBack, GpuProviderInterface, SavesCheckpoints, StreamsLogs
from gpuyard.scheduler.view import LiveAttempt
from gpuyard.storage.blobs import Blobs
from gpuyard.storage.place import in_background

_AGAIN_S = 2.0
_LAST_S = 60.0
_TRIES = 3
_STEP_S = 0.5
log = structlog.get_logger(__name__)


class Mirrors:
    """One mirror for each attempt that runs on an engine; the logs lie in `folder`."""

    def __init__(
        self,
        core: Core,
        reports: Reports,
        providers: Mapping[str, GpuProviderInterface],
        blobs: Blobs,
        folder: Path,
    ) -> None:
        self._core = core
        self._reports = reports
        self._providers = providers
        self._blobs = blobs
        self._folder = folder
        self._running: dict[str, asyncio.Task[None]] = {}
        self._whole: set[str] = set()
        self._saved: dict[str, float] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    def path(self, attempt_id: str) -> Path:
        """Where the output of an attempt is kept."""
        return self._folder / f"{attempt_id}.log"

    def follow(self, attempt: LiveAttempt) -> None:
        """Follow it from now on; nothing changes when it is followed."""
        if attempt.id not in self._running:
            self._running[attempt.id] = self._core.spawn(self._follow(attempt), "mirror")
            self._core.spawn(self._collect(attempt), "collect")

    async def finish(self, attempt: LiveAttempt) -> tuple[bool, str]:
        """The attempt is over: read its output to the end. Whether all it left is here, and what its owner should know.

        A workspace is waited for as long as there is no way to it: whoever comes after relies on it.
        """
        self.follow(attempt)
        task = self._running[attempt.id]
        await asyncio.wait([task], timeout=_LAST_S)
        task.cancel()
        self._running.pop(attempt.id, None)
        kept = await self._take_checkpoints(attempt)
        missing = await self._bring_back(attempt)
        self._turns.pop(attempt.id, None)
        self._saved.pop(attempt.id, None)
        whole = attempt.id in self._whole
        self._whole.discard(attempt.id)
        return whole and kept and not missing, missing

    async def _bring_back(self, attempt: LiveAttempt) -> str:
        """Bring its workspace up to date here; why that cannot be, for people."""
        provider, said = self._providers[attempt.provider], ""
        if not isinstance(provider, BringsBack):
            return ""
        tries = _TRIES
        while tries:
            try:
                await provider.bring_back(attempt.provider_ref or "")
                return ""
            except JobNotFoundError:
                return ""
            except (ProviderError, OSError) as error:
                tries -= not isinstance(error, ProviderError) or error.error_code not in TRANSIENT
                said = f"What it changed in its workspace is not here: {error}"
                log.warning("a workspace could not be brought back", attempt=attempt.id, error=str(error))
                self._core.view.engines.reasons[attempt.id] = said
                await asyncio.sleep(_AGAIN_S)
        return said

    async def _follow(self, attempt: LiveAttempt) -> None:
        """Read from the start what is not here yet, again whenever the stream breaks."""
        provider, reference = self._providers[attempt.provider], attempt.provider_ref or ""
        if not isinstance(provider, StreamsLogs):
            self._whole.add(attempt.id)
            return
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        reader = _Reader(attempt.id, self._reports)
        while True:
            try:
                with self.path(attempt.id).open("ab") as file:
                    await reader.read(provider.stream_logs(reference, lines=None, follow=True), file)
                state = (await provider.get_job_status(reference)).status
                if state not in (JobStatus.PENDING, JobStatus.RUNNING):
                    self._whole.add(attempt.id)
                    return  # else the stream was cut: the engine was started anew, say
            except JobNotFoundError:
                self._whole.add(attempt.id)
                return
            except Exception as error:  # noqa: BLE001  whatever it is, the next try may do
                log.warning("the output of an attempt cannot be kept, will try again", attempt=attempt.id,
                            error=str(error))  # fmt: skip
            await asyncio.sleep(_AGAIN_S)

    async def _collect(self, attempt: LiveAttempt) -> None:
        while attempt.id in self._running:
            await self._take_checkpoints(attempt)
            await asyncio.sleep(_AGAIN_S)

    async def _take_checkpoints(self, attempt: LiveAttempt) -> bool:
        """Bring new checkpoints into the blob store."""
        provider = self._providers[attempt.provider]
        if not isinstance(provider, SavesCheckpoints):
            return True
        async with self._turns.setdefault(attempt.id, asyncio.Lock()):
            return await self._take_new(attempt, provider)

    async def _take_new(self, attempt: LiveAttempt, provider: SavesCheckpoints) -> bool:
        try:
            for item in await provider.checkpoints(attempt.provider_ref or ""):
                if item.at <= self._saved.get(attempt.id, 0.0):
                    continue
                blob = await in_background(self._blobs.put_path, item.where)
                self._reports.checkpoint(attempt, wire.CheckpointSaved(
                    attempt.id, item.path, blob.sha256, blob.size, item.at, item.step, item.directory
                ))  # fmt: skip
                await self._core.committed()
                self._saved[attempt.id] = item.at
        except (ProviderError, LedgerError, OSError) as error:
            log.warning("checkpoints could not be fetched", attempt=attempt.id, error=str(error))
            return False
        return True


class _Reader:
    """What one attempt's output tells, however often it is read again from its start."""

    def __init__(self, attempt_id: str, reports: Reports) -> None:
        self._id = attempt_id
        self._reports = reports
        self._progress = ProgressReader()
        self._seen = 0
        self._told = 0.0

    async def read(self, stream: AsyncIterator[bytes], file: IO[bytes]) -> None:
        """Append to `file` what it lacks, and report progress on the way."""
        kept, offset = file.tell(), 0
        loop = asyncio.get_running_loop()
        points: list[Point] = []
        async for part in stream:
            fresh = part[max(kept - offset, 0) :]
            new = part[max(self._seen - offset, 0) :]
            offset += len(part)
            if fresh:
                file.write(fresh)
                file.flush()
            if new:
                self._seen = offset
                points += self._progress.feed(new, self._reports.clock())
            if points and loop.time() - self._told >= _STEP_S:
                self._tell(points)
                points, self._told = [], loop.time()
        self._tell([*points, *self._progress.finish(self._reports.clock())])

    def _tell(self, points: list[Point]) -> None:
        progress = asdict(self._progress.progress)
        if points or any(progress.values()):
            told = [wire.Point(point.name, point.n, point.step, point.value, point.at) for point in points]
            self._reports.progressed(wire.ProgressSeen(self._id, progress, told))
