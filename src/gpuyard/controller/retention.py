"""Removes history whose time is over, in small slices beside running commits.

`ledger/retention.py` finds what may go. What a row points to goes before the row, so a
pass that was cut off leaves nothing that the next one does not find.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import structlog

from gpuyard.config.retention import before
from gpuyard.controller.core import Core
from gpuyard.controller.submissions import Submissions
from gpuyard.controller.unused_blobs import named_within_s
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.gangs import share_id
from gpuyard.domain.ids import made_at
from gpuyard.ledger.retention import (
    JobWalk,
    LinkRemoval,
    PointRemoval,
    RetentionLimits,
    SeriesWalk,
    SubmissionWalk,
    arrays_without_tasks,
    items_of_batch,
    old_batches,
    old_unused_gpus,
    removal_event,
    rows_of_arrays,
    rows_of_batch,
    rows_of_jobs,
)
from gpuyard.ledger.retention_plan import Amount, plan
from gpuyard.ledger.slices import in_slices
from gpuyard.providers.configured import Providers
from gpuyard.storage.blobs import Blobs
from gpuyard.storage.log_times import times_path
from gpuyard.storage.place import in_background

# One commit removes at most this many jobs with all their rows, or this many items.
JOBS_AT_ONCE = 10
_ITEMS_AT_ONCE = 100
# A pass removes at most this many jobs in a row of which each depended on the next.
_GENERATIONS = 10
_LONGEST_UPLOAD_S = 86_400.0
# After each commit, others have the loop for this many times as long as it took.
_REST = 2.0
log = structlog.get_logger(__name__)
T = TypeVar("T")


class Retention:
    """Removes what `[retention]` says is too old.

    `copied_logs` is the folder of the copied output of external queues. `removed`
    counts what the newest pass has removed so far.
    """

    def __init__(
        self,
        core: Core,
        providers: Providers,
        blobs: Blobs,
        copied_logs: Path,
        submissions: Submissions,
    ) -> None:
        self.removed = Counter[str]()
        self._core = core
        self._providers = providers
        self._blobs = blobs
        self._copied_logs = copied_logs
        self._submissions = submissions
        self._lock = asyncio.Lock()
        # Plans read much, so that one at a time is made.
        self._planning = asyncio.Lock()
        # Up to which job the usage of ended ones has been deleted.
        self._usage_deleted_to = ""
        self._asked: asyncio.Task[Counter[str]] | None = None

    def limits(self) -> RetentionLimits:
        """What goes now."""
        settings = self._core.settings.retention
        now = self._core.clock()
        return RetentionLimits(
            jobs_before=before(settings.jobs_days, now),
            jobs_most=settings.jobs or None,
            keys_before=before(settings.keys_days, now) or now,
            series_before=before(settings.series_days, now),
            usage_before=before(settings.usage_days, now),
            logs_before=before(settings.logs_days, now),
            events_before=before(settings.events_days, now),
            events_most=self._core.settings.ledger.keep_events,
        )

    async def run(self) -> Counter[str]:
        """One pass over everything; returns how much of each kind was removed.

        LedgerError.
        """
        async with self._lock:
            self.removed = Counter[str]()
            limits = self.limits()
            await self._remove_batches(limits)
            await self._remove_jobs(limits)
            await self._remove_unused_gpus(limits)
            await self._remove_submissions()
            await self._remove_series(limits)
            await self._remove_logs(limits)
            await self._abort_uploads()
            self.removed["events"] += await self._core.ledger.prune(
                self._core.writer, limits.events_most, limits.events_before
            )
            return self.removed

    async def run_on_request(self, wait_s: float) -> tuple[bool, Counter[str]]:
        """Start a pass, or join the one that was started so; after at most `wait_s`
        returns whether it has ended, and what it has removed. LedgerError.
        """
        asked = self._asked
        if asked is None:
            asked = asyncio.create_task(self.run(), name="retention")
            self._asked = asked
        await asyncio.wait([asked], timeout=wait_s)
        if not asked.done():
            return False, self.removed
        # Of several who waited, the first may have started the next one already.
        if self._asked is asked:
            self._asked = None
        return True, asked.result()

    async def plan(self) -> Mapping[str, Amount]:
        """What a pass would remove now, by kind. LedgerError."""
        async with self._planning:
            return await self._plan()

    async def _plan(self) -> Mapping[str, Amount]:
        limits = self.limits()
        logged = await asyncio.to_thread(_names, self._copied_logs)
        found, attempts = await self._read(plan, limits, logged)
        live = frozenset(self._core.view.attempts)
        old = await asyncio.to_thread(
            old_logs, self._copied_logs, limits.logs_before, live
        )
        output = Amount()
        for path in {*old, *(self._copied_log(attempt) for attempt in attempts)}:
            with suppress(FileNotFoundError):
                output.add(1, path.stat().st_size)
        return {**found, "logs": output}

    async def _read(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.to_thread(self._core.ledger.read, work, *arguments)

    async def _emit(self, events: Sequence[Event]) -> None:
        """Commit `events`, then rest for as long as running work needs."""
        began = time.monotonic()
        self._core.emit(events)
        await self._core.committed(own_only=True)
        await asyncio.sleep(_REST * (time.monotonic() - began))

    # --- jobs ---

    async def _remove_jobs(self, limits: RetentionLimits) -> None:
        for _ in range(_GENERATIONS):
            removed = self.removed["jobs"]
            walk = JobWalk(limits)
            while (page := await self._read(walk.next_page)) is not None:
                for start in range(0, len(page), JOBS_AT_ONCE):
                    await self._remove(page[start : start + JOBS_AT_ONCE])
            if not walk.blocked or self.removed["jobs"] == removed:
                break
        gone = await self._read(arrays_without_tasks, limits)
        for start in range(0, len(gone), JOBS_AT_ONCE):
            part = gone[start : start + JOBS_AT_ONCE]
            await self._remove_rows(await self._read(rows_of_arrays, part))

    async def _remove(self, job_ids: Sequence[str]) -> None:
        """Remove these jobs with all that belongs to them."""
        job_ids = await self._without_blobs(job_ids)
        await self._remove_points(PointRemoval(job_ids))
        await self._remove_output(job_ids)
        keys = await self._read(rows_of_jobs, job_ids)
        view = self._core.view
        # Somebody may have resumed one meanwhile, or let another job depend on it.
        if any(job_id in view.jobs or job_id in view.ended for job_id in job_ids):
            return
        if job_ids:
            await self._remove_links(keys[Table.ARTIFACTS])
            await self._remove_rows(keys)

    async def _remove_links(self, artifact_ids: Sequence[str]) -> None:
        """Forget the links to artifacts whose files are gone: they open nothing."""
        if artifact_ids:
            await in_slices(self._core.writer, LinkRemoval(artifact_ids).run_slice)

    async def _remove_rows(self, keys: Mapping[Table, Sequence[str]]) -> None:
        await self._emit([removal_event(keys, self._core.clock())])
        self.removed.update({table.value: len(found) for table, found in keys.items()})

    async def _without_blobs(self, job_ids: Sequence[str]) -> list[str]:
        """Delete the blobs of their checkpoints and artifacts; returns the jobs that
        have none left. A blob that was stored again stays while somebody may be about
        to name it, and so does the job, until a later pass.

        The ledger forgets a blob before the blob is deleted, so it never names one that
        is gone.
        """
        queries = self._core.queries
        saved = await asyncio.to_thread(queries.checkpoints_of_jobs, job_ids)
        left = await asyncio.to_thread(queries.artifacts_of_jobs, job_ids)
        await self._forget(Table.CHECKPOINTS, EventKind.CHECKPOINT_PRUNED, saved)
        await self._forget(Table.ARTIFACTS, EventKind.ARTIFACTS_REMOVED, left)
        named = [(row, made_at(row["id"])) for row in saved]
        named += [(row, row["created_at"]) for row in left]
        stuck: set[str] = set()
        for row, named_at in named:
            try:
                if not await self._delete_blob(row["sha256"], named_at):
                    stuck.add(row["job_id"])
            except OSError as error:
                log.warning("a blob cannot be deleted, its job stays", error=str(error))
                stuck.add(row["job_id"])
        return [job_id for job_id in job_ids if job_id not in stuck]

    async def _delete_blob(self, sha256: str, named_at: float) -> bool:
        """Delete a blob that the ledger does not need; False if somebody may be about
        to name it. OSError.
        """
        if await asyncio.to_thread(self._core.queries.blob_is_used, sha256):
            return True
        stored_at = await in_background(self._blobs.stored_at, sha256)
        if stored_at is None:
            return True
        if named_within_s(stored_at, named_at, self._core.clock()) > 0:
            return False
        await in_background(self._blobs.delete, sha256)
        return True

    async def _forget(
        self, table: Table, kind: EventKind, rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """Record that the blobs of these rows are not kept any more."""
        kept = [row["id"] for row in rows if row["kept"]]
        if kept:
            changes = tuple(Change(table, key, {"kept": False}) for key in kept)
            info = {"count": len(kept)}
            await self._emit([Event(kind, self._core.clock(), changes, None, info)])

    async def _remove_output(self, job_ids: Sequence[str]) -> None:
        """Delete the output of their attempts, here and on the nodes that are
        connected; other nodes delete it by its age.
        """
        found = await asyncio.to_thread(self._core.queries.attempts_of, job_ids)
        attempts = [row for rows in found.values() for row in rows]
        copies = [self._copied_log(row["id"]) for row in attempts]
        times = [times_path(copy) for copy in copies]
        await asyncio.to_thread(_delete_logs, [*copies, *times])
        nodes: dict[str, list[str]] = {}
        for row in attempts:
            for rank, share in enumerate(row["placements"] or ()):
                node_id = share.get("node_id") or ""
                nodes.setdefault(node_id, []).append(share_id(row["id"], rank))
        for provider in self._providers.node_providers.values():
            for node_id, attempt_ids in nodes.items():
                await provider.discard(node_id, attempt_ids)

    def _copied_log(self, attempt_id: str) -> Path:
        return self._copied_logs / f"{attempt_id}.log"

    # --- environments and code ---

    async def _remove_submissions(self) -> None:
        """Remove the environments and the code that no job has any more."""
        environments = self._submissions.environments
        code = self._submissions.code
        old_environments = await asyncio.to_thread(environments.not_handed_over)
        old_code = await asyncio.to_thread(code.not_stored_lately)
        if not old_environments and not old_code:
            return
        walk = SubmissionWalk(old_environments | old_code)
        while await self._read(walk.next_page):
            pass
        await asyncio.to_thread(environments.remove, walk.unused & old_environments)
        await asyncio.to_thread(code.remove, walk.unused & old_code)
        self.removed["environments"] += len(walk.unused & old_environments)
        self.removed["code"] += len(walk.unused & old_code)

    async def _abort_uploads(self) -> None:
        """Remove what uploads to the bucket have left that nobody goes on with: no
        upload takes so long.
        """
        limit = self._core.clock() - _LONGEST_UPLOAD_S
        try:
            count = await in_background(self._blobs.abort_unfinished, limit)
        except OSError as error:
            log.warning("unfinished uploads are not aborted", error=str(error))
            return
        if count:
            log.info("unfinished uploads were aborted", count=count)

    # --- GPUs, batches, series, output ---

    async def _remove_unused_gpus(self, limits: RetentionLimits) -> None:
        while ids := await self._read(old_unused_gpus, limits, _ITEMS_AT_ONCE):
            await self._remove_rows({Table.UNUSED_GPUS: ids})

    async def _remove_batches(self, limits: RetentionLimits) -> None:
        for batch_id in await self._read(old_batches, limits):
            while ids := await self._read(items_of_batch, batch_id, _ITEMS_AT_ONCE):
                await self._remove_rows({Table.ITEMS: ids})
            await self._remove_rows(await self._read(rows_of_batch, batch_id))

    async def _remove_series(self, limits: RetentionLimits) -> None:
        if limits.series_before is not None:
            walk = SeriesWalk(limits.series_before)
            while (page := await self._read(walk.next_page)) is not None:
                await self._remove_points(PointRemoval(page))
        if limits.usage_before is not None:
            walk = SeriesWalk(limits.usage_before, self._usage_deleted_to)
            while (page := await self._read(walk.next_page)) is not None:
                await self._remove_points(PointRemoval(page, usage_only=True))
            self._usage_deleted_to = walk.after

    async def _remove_points(self, removal: PointRemoval) -> None:
        if removal.job_ids and await self._read(removal.any):
            kind = "usage" if removal.usage_only else "points"
            slices = in_slices(self._core.writer, removal.run_slice)
            self.removed[kind] += await slices

    async def _remove_logs(self, limits: RetentionLimits) -> None:
        """Delete the old output of attempts in external queues. That of other attempts
        is on the nodes, which look after it.
        """
        live = frozenset(self._core.view.attempts)
        limit = limits.logs_before
        old = await asyncio.to_thread(old_logs, self._copied_logs, limit, live)
        self.removed["logs"] += await asyncio.to_thread(_delete_logs, old)


def _names(folder: Path) -> frozenset[str]:
    """The attempts that have a log in `folder`."""
    if not folder.exists():
        return frozenset()
    return frozenset(name.removesuffix(".log") for name in os.listdir(folder))  # noqa: PTH208


def _delete_log(path: Path) -> bool:
    """Whether it is gone now; one that stays is not in the way of others."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("a log cannot be deleted", path=str(path), error=str(error))
        return False
    return True


def _delete_logs(paths: Sequence[Path]) -> int:
    """How many are gone now."""
    return sum(map(_delete_log, paths))


def old_logs(folder: Path, limit: float | None, live: Collection[str]) -> list[Path]:
    """The logs in `folder` that were written to before `limit` for the last time,
    except those of the attempts `live`.
    """
    found: list[Path] = []
    if limit is None or not folder.exists():
        return found
    with os.scandir(folder) as entries:
        for entry in entries:
            name, _, ending = entry.name.rpartition(".")
            if ending not in ("log", "mark", "times", "part") or name in live:
                continue
            if entry.stat(follow_symlinks=False).st_mtime < limit:
                found.append(Path(entry.path))
    return found
