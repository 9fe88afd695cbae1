"""Copies the output of attempts in external queues to this host while they run.

An external queue forgets a job and its output soon after its end. The copy is also read
for progress, and checkpoints are fetched at the same time.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from gpuyard.controller.core import Core
from gpuyard.controller.job_warnings import warn_of_limited_log
from gpuyard.controller.left_files import LeftFiles
from gpuyard.controller.log_copy import LogCopy, mark_path
from gpuyard.controller.logged_scalars import LoggedScalarFiles
from gpuyard.controller.queue_use import Figures, QueueUse
from gpuyard.controller.reports import Reports
from gpuyard.controller.secrets import Secrets
from gpuyard.domain import wire
from gpuyard.domain.errors import JobNotFoundError, LedgerError, ProviderError
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.masking import Mask, MaskedStream
from gpuyard.domain.spec_values import STORED
from gpuyard.providers.base import (
    TRANSIENT,
    GpuProviderInterface,
    OutputPart,
    SavedFile,
)
from gpuyard.scheduler.attempts import LiveAttempt
from gpuyard.storage.blobs import Blob, Blobs
from gpuyard.storage.logfile import LogFile
from gpuyard.storage.place import in_background
from gpuyard.storage.untrusted import UntrustedFileError

if TYPE_CHECKING:
    from gpuyard.insight.progress import MetricPoint
    from gpuyard.insight.scalar_files import LoggedScalars

_PAUSE_S = 2.0
_LAST_READ_TIMEOUT_S = 60.0
_WORKSPACE_TRIES = 3
_REPORT_EVERY_S = 0.5
_PART_BYTES = 1 << 16
log = structlog.get_logger(__name__)


class CopiedLogs:
    """Follows the output of attempts in external queues; the copies are in `folder`."""

    def __init__(
        self,
        core: Core,
        reports: Reports,
        providers: Mapping[str, GpuProviderInterface],
        blobs: Blobs,
        folder: Path,
        secrets: Secrets,
        home: Path,
        figures: Figures = dict,
    ) -> None:
        self._secrets = secrets
        self._figures = figures
        self._left_files = LeftFiles(core, reports.artifacts, blobs, home)
        self._core = core
        self._reports = reports
        self._providers = providers
        self._blobs = blobs
        self._folder = folder
        self._followers: dict[str, asyncio.Task[None]] = {}
        # Set once the end of a followed attempt is known.
        self._ends: dict[str, asyncio.Event] = {}
        # What those that have not ended use.
        self._uses: dict[str, QueueUse] = {}
        # Attempts whose output is here to its end.
        self._complete: set[str] = set()
        # When the newest fetched checkpoint of an attempt was saved (UTC seconds).
        self._checkpoint_times: dict[str, float] = {}
        self._checkpoint_locks: dict[str, asyncio.Lock] = {}

    def path(self, attempt_id: str) -> Path:
        """The file that holds the output of an attempt."""
        return self._folder / f"{attempt_id}.log"

    def is_cut_off(self, attempt_id: str) -> bool:
        """Whether an ended attempt has more output than its copy."""
        return mark_path(self.path(attempt_id)).exists()

    def give_up(self, attempt_id: str) -> None:
        """Leave its copy as it is."""
        mark_path(self.path(attempt_id)).unlink(missing_ok=True)

    def follow(self, attempt: LiveAttempt) -> None:
        """Begin to follow the attempt, unless it is followed already."""
        if attempt.id not in self._followers:
            end = asyncio.Event()
            self._ends[attempt.id] = end
            self._followers[attempt.id] = self._core.spawn(
                self._follow(attempt, end), "follow-log"
            )
            self._core.spawn(
                self._collect_checkpoints(attempt, end), "collect-checkpoints"
            )

    def keep(self, attempt: LiveAttempt, output: str) -> None:
        """Write the whole output of an attempt that was not followed."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        shown = self._secrets.hide(attempt.id, output)
        self.path(attempt.id).write_text(shown, encoding="utf-8", errors="replace")

    async def finish(self, attempt: LiveAttempt) -> tuple[bool, str]:
        """Fetch all that an ended attempt left: output, checkpoints, artifacts and
        workspace.

        Returns whether everything is here, and a message for the owner of the job if
        the workspace is not. While the queue does not answer, this waits for the
        workspace, because later jobs rely on it.
        """
        self.follow(attempt)
        task = self._followers[attempt.id]
        end = self._ends[attempt.id]
        end.set()
        await asyncio.wait([task], timeout=_LAST_READ_TIMEOUT_S)
        task.cancel()
        self._followers.pop(attempt.id, None)
        self._ends.pop(attempt.id, None)
        has_checkpoints = await self._fetch_checkpoints(attempt)
        has_artifacts = await self._left_files.save(
            attempt,
            self._spec(attempt),
            self._providers[attempt.provider],
            partial(self._secrets.hide, attempt.id),
        )
        problem = await self._bring_back_workspace(attempt)
        self._checkpoint_locks.pop(attempt.id, None)
        self._checkpoint_times.pop(attempt.id, None)
        has_output = attempt.id in self._complete
        self._complete.discard(attempt.id)
        if has_output:
            mark_path(self.path(attempt.id)).unlink(missing_ok=True)
        is_all_here = has_output and has_checkpoints and has_artifacts and not problem
        return is_all_here, problem

    def take_usage(self, attempt_id: str) -> dict[str, float]:
        """What an attempt that ends has used, as far as that was measured."""
        use = self._uses.pop(attempt_id, None)
        return use.totals() if use else {}

    async def _bring_back_workspace(self, attempt: LiveAttempt) -> str:
        """Copy its workspace back; returns why that failed, for people."""
        provider = self._providers[attempt.provider]
        problem = ""
        tries = _WORKSPACE_TRIES
        while tries:
            try:
                await provider.bring_back(attempt.provider_ref or "")
                return ""
            except JobNotFoundError:
                return ""
            except (ProviderError, OSError) as error:
                if not _is_transient(error):
                    tries -= 1
                problem = f"What it changed in its workspace is not here: {error}"
                log.warning(
                    "a workspace could not be brought back",
                    attempt=attempt.id,
                    error=str(error),
                )
                self._core.view.external_queues.reasons[attempt.id] = problem
                await asyncio.sleep(_PAUSE_S)
        return problem

    async def _follow(self, attempt: LiveAttempt, end: asyncio.Event) -> None:
        """Copy the rest of the output; start again whenever the stream breaks.

        A stream ends with its job. If the end of the job does not become known soon
        after, the stream was cut off: by a daemon that has restarted, for example.
        """
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        spec = self._spec(attempt)
        mask = await self._mask(attempt, spec)
        reader = _OutputReader(attempt.id, self._reports, mask)
        reader.is_silent = self._providers[attempt.provider].agents_report
        scalars = LoggedScalarFiles(
            self._providers[attempt.provider],
            attempt,
            spec.workdir if spec else None,
            reader.add_logged,
        )
        use = QueueUse(
            self._providers[attempt.provider],
            attempt,
            self._figures,
            self._core.settings.node.usage_s,
            self._core.clock,
            partial(self._reports.points_seen, attempt.id),
        )
        if attempt.id in self._core.view.attempts:
            self._uses[attempt.id] = use
        tasks = [
            self._core.spawn(use.follow(), "follow-use"),
            self._core.spawn(self._limit(attempt, spec), "limit-log"),
            self._core.spawn(scalars.follow(), "follow-scalars"),
        ]
        try:
            await self._read_to_end(attempt, reader, end)
            await scalars.finish()
        finally:
            for task in tasks:
                task.cancel()

    async def _read_to_end(
        self, attempt: LiveAttempt, reader: "_OutputReader", end: asyncio.Event
    ) -> None:
        provider = self._providers[attempt.provider]
        reference = attempt.provider_ref or ""
        while True:
            try:
                with LogCopy(self.path(attempt.id)) as copy:
                    stream = provider.stream_output(reference, mark=copy.mark)
                    await reader.read(stream, copy)
                if await _is_set_within(end, _PAUSE_S + provider.poll_s):
                    self._complete.add(attempt.id)
                    return
                continue
            except JobNotFoundError:
                self._complete.add(attempt.id)
                return
            except Exception as error:  # noqa: BLE001  the next try may succeed
                log.warning(
                    "the output of an attempt cannot be kept, will try again",
                    attempt=attempt.id,
                    error=str(error),
                )
                await _pause(end)

    def _spec(self, attempt: LiveAttempt) -> JobSpec | None:
        text = self._core.queries.spec_texts({attempt.job_id}).get(attempt.job_id)
        if text is None:
            return None
        return JobSpec.model_validate_json(text, context=STORED)

    async def _mask(self, attempt: LiveAttempt, spec: JobSpec | None) -> Mask:
        if spec is None:
            return Mask(())
        return await self._secrets.mask(attempt.id, spec)

    async def _limit(self, attempt: LiveAttempt, spec: JobSpec | None) -> None:
        """Keep the copy below the limit of the job's log while it is followed."""
        own_gb = spec.log_limit_gb if spec else None
        limit_gb = own_gb or self._core.settings.node.max_log_gb
        copy = LogFile(self.path(attempt.id))
        while True:
            try:
                if copy.is_over(limit_gb) and await asyncio.to_thread(
                    copy.limit, limit_gb
                ):
                    warn_of_limited_log(self._core, attempt, limit_gb)
            except FileNotFoundError:
                pass
            except OSError as error:
                log.warning(
                    "a copied log could not be limited",
                    attempt=attempt.id,
                    error=str(error),
                )
            await asyncio.sleep(_PAUSE_S)

    async def _collect_checkpoints(
        self, attempt: LiveAttempt, end: asyncio.Event
    ) -> None:
        while not end.is_set():
            await self._fetch_checkpoints(attempt)
            await _pause(end)

    async def _fetch_checkpoints(self, attempt: LiveAttempt) -> bool:
        """Copy new checkpoints into the blob store; False if that failed."""
        provider = self._providers[attempt.provider]
        async with self._checkpoint_locks.setdefault(attempt.id, asyncio.Lock()):
            return await self._fetch_new_checkpoints(attempt, provider)

    async def _fetch_new_checkpoints(
        self, attempt: LiveAttempt, provider: GpuProviderInterface
    ) -> bool:
        try:
            for found in await provider.checkpoints(attempt.provider_ref or ""):
                if found.at <= self._checkpoint_times.get(attempt.id, 0.0):
                    continue
                blob = await self._store(attempt, found)
                if blob is None:
                    continue
                saved = wire.CheckpointSaved(
                    attempt.id,
                    self._secrets.hide(attempt.id, found.path),
                    blob.sha256,
                    blob.size,
                    found.at,
                    found.step,
                    found.directory,
                )
                self._reports.checkpoints.saved(attempt, saved)
                await self._core.committed()
                self._checkpoint_times[attempt.id] = found.at
        except (ProviderError, LedgerError, OSError) as error:
            log.warning(
                "checkpoints could not be fetched", attempt=attempt.id, error=str(error)
            )
            return False
        return True

    async def _store(self, attempt: LiveAttempt, found: SavedFile) -> Blob | None:
        """Put a checkpoint into the blob store; None when it is not what it should be:
        a link, for example.
        """
        folder = found.beneath or found.where.parent
        name = found.where.relative_to(folder)
        try:
            return await in_background(self._blobs.put_beneath, folder, name)
        except UntrustedFileError as error:
            log.warning(
                "a checkpoint is left out", attempt=attempt.id, error=str(error)
            )
            self._checkpoint_times[attempt.id] = found.at
            return None


async def _pause(end: asyncio.Event) -> None:
    """Wait for a while, or until the end becomes known."""
    if end.is_set():
        await asyncio.sleep(_PAUSE_S)
    else:
        await _is_set_within(end, _PAUSE_S)


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event, at most this long; returns whether it is set."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()


def _is_transient(error: Exception) -> bool:
    return isinstance(error, ProviderError) and error.error_code in TRANSIENT


class _OutputReader:
    """Copies the output of one attempt, and reads its progress."""

    def __init__(self, attempt_id: str, reports: Reports, mask: Mask) -> None:
        self._mask = mask
        self._attempt_id = attempt_id
        self._reports = reports
        # Late: only a server with an external queue reads output itself, and to import
        # all forms of output takes a twentieth of a start.
        from gpuyard.insight.progress import ProgressReader

        self._progress = ProgressReader()
        self._bytes_read = 0
        self._reported_at = 0.0
        self._points: list[MetricPoint] = []
        self._logged: LoggedScalars | None = None
        # An agent reports what it reads itself.
        self.is_silent = False

    def add_logged(self, found: "LoggedScalars") -> None:
        """Report what the program has logged to a file."""
        self._logged = found
        self._report_points(found.points)

    async def read(self, stream: AsyncIterator[OutputPart], copy: LogCopy) -> None:
        """Append what comes to `copy`, and report progress on the way."""
        await self._read_copy(copy)
        masked = MaskedStream(self._mask)
        part: OutputPart | None = None
        try:
            async for part in stream:
                self._keep(masked.feed(part.data), copy)
                if not masked.holds:
                    copy.note(part.mark)
            self._keep(masked.finish(), copy)
        finally:
            if part is not None and not masked.holds:
                copy.note(part.mark, now=True)
        self._points += self._progress.finish(self._reports.clock())
        self._report(self._points)
        self._points = []

    async def _read_copy(self, copy: LogCopy) -> None:
        """Read the progress in what an earlier server has copied."""
        file = LogFile(copy.path)
        while self._bytes_read < copy.size:
            first, data = await asyncio.to_thread(
                file.read, self._bytes_read, _PART_BYTES
            )
            if not data:
                return
            self._bytes_read = first
            self._read_progress(data, first)

    def _keep(self, data: bytes, copy: LogCopy) -> None:
        if data:
            begin = copy.size
            copy.append(data)
            self._read_progress(data, begin)

    def _read_progress(self, data: bytes, begin: int) -> None:
        """Read output that begins at this byte, and report what it says."""
        not_read = data[max(self._bytes_read - begin, 0) :]
        if not not_read:
            return
        self._bytes_read = begin + len(data)
        self._points += self._progress.feed(not_read, self._reports.clock())
        now = time.monotonic()
        if self._points and now - self._reported_at >= _REPORT_EVERY_S:
            self._report(self._points)
            self._points = []
            self._reported_at = now

    def _report(self, points: list["MetricPoint"]) -> None:
        self._report_points(
            [
                wire.SeriesPoint(point.name, point.n, point.step, point.value, point.at)
                for point in points
            ]
        )

    def _report_points(self, points: list[wire.SeriesPoint]) -> None:
        if self.is_silent:
            return
        progress = asdict(self._progress.progress)
        if self._logged:
            progress = self._logged.beside(progress)
        words = (self._progress.no_gpu, self._progress.not_finite)
        if points or any(words) or any(progress.values()):
            seen = wire.ProgressSeen(self._attempt_id, progress, points, *words)
            self._reports.progressed(seen)
