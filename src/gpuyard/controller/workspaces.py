"""The quota of workspaces, and their removal when nobody has used them for long.

Nobody can refuse a job that is writing. So workspaces are measured now and then: who
nears the quota is warned, and new jobs of a project that is over it are refused.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from gpuyard.config.paths import Home
from gpuyard.controller.core import Core
from gpuyard.controller.job_warnings import warn_jobs
from gpuyard.domain.errors import RefusedError
from gpuyard.domain.events import Event, EventKind
from gpuyard.domain.units import format_gb
from gpuyard.domain.workspaces import workspace_key, workspace_names
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.storage.place import in_background, open_remote_workspaces
from gpuyard.storage.workspace_use import (
    Use,
    note_use,
    remove_set_aside,
    set_aside,
    use_of,
)
from gpuyard.storage.workspaces import RemoteWorkspaces, Workspace, listing

_DAY_S = 86400.0
_GB = 1e9
# Of the quota: then its users are warned.
_NEARLY = 0.9
# Submissions to a project that is over its quota may take this share of the disk's
# time.
_MEASURING = 0.1
# So long jobs wait for the first measurement after a start.
_FIRST_S = 5.0
log = structlog.get_logger(__name__)


class Workspaces:
    """Looks after the workspaces of the settings. If those are in a bucket, what this
    host has are copies.
    """

    def __init__(self, core: Core, home: Home) -> None:
        settings = core.settings.workspaces
        self._core = core
        self._settings = settings
        self._root = settings.root(home)
        self._remote = open_remote_workspaces(home, settings)
        # Keys of those that are being sent, and whether they have changed again.
        self._sending: dict[str, bool] = {}
        # By project, as they were found last: bytes in all of its workspaces.
        self._sizes: dict[str, int] = {}
        self._measure_again_at = 0.0  # of the monotonic clock
        # The first measurement, which a job was the first to need.
        self._first: asyncio.Task[None] | None = None
        self._first_until = 0.0  # of the monotonic clock
        self._is_measured = False
        # Keys of workspaces that a job was the first of its project to use.
        self._first_used: set[str] = set()
        # What was told of projects near or over their quota.
        self._told: dict[str, EventKind] = {}

    # --- what jobs may use ---

    async def check(self, keys: Iterable[str]) -> None:
        """RefusedError if the project of one of these workspaces is over its quota,
        also if it is measured again, which is not done too often. They count as used
        now.
        """
        for key in keys:
            project, _ = workspace_names(key)
            quota = self._quota(project)
            if quota and not self._is_measured:
                await self._measure_first()
            may_measure = time.monotonic() >= self._measure_again_at
            if quota and self._sizes.get(project, 0) > quota and may_measure:
                await self._measure()
            if quota and self._sizes.get(project, 0) > quota:
                raise self._over_quota(project, quota)
            await self._use(key)

    async def _measure_first(self) -> None:
        """Measure after a start, when nothing is known yet. Large workspaces take long:
        nobody waits once that has taken _FIRST_S.
        """
        if self._first is None:
            self._first = self._core.spawn(self._try_to_measure(), "measure-workspaces")
            self._first_until = time.monotonic() + _FIRST_S
        left_s = self._first_until - time.monotonic()
        if left_s > 0:
            await asyncio.wait([self._first], timeout=left_s)

    async def _try_to_measure(self) -> None:
        try:
            await self._measure()
        except OSError as error:  # `look` tries it again
            log.warning("the workspaces are not measured", error=str(error))
            self._is_measured = True

    async def _use(self, key: str) -> None:
        try:
            use = Use(self._core.clock(), by_job=True)
            if not await in_background(note_use, self._root / key, use):
                self._first_used.add(key)
        except OSError as error:  # then it is noted when it is looked at
            log.warning("the use of a workspace is not noted", error=str(error))

    def _over_quota(self, project: str, quota: int) -> RefusedError:
        used = format_gb(self._sizes[project] / _GB)
        return RefusedError(
            f"The workspaces of the project {project} take {used}, and its quota is"
            f" {format_gb(quota / _GB)}.",
            "Remove files in them, or run the job without one: `gpuyard workspace`"
            " lists them. An administrator can set [workspaces] quota_gb.",
        )

    def _quota(self, project: str) -> int:
        """In bytes; 0 for none."""
        own = self._settings.quotas_gb.get(project)
        return int((self._settings.quota_gb if own is None else own) * _GB)

    async def _measure(self) -> list[Workspace]:
        began = time.monotonic()
        found = await self.listing()
        now = time.monotonic()
        self._measure_again_at = now + (now - began) / _MEASURING
        sizes: dict[str, int] = defaultdict(int)
        for one in found:
            sizes[one.project] += one.size
        self._sizes = dict(sizes)
        self._is_measured = True
        return found

    # --- what is in a bucket ---

    async def listing(self) -> list[Workspace]:
        """All workspaces, by project and name; of one that has a copy here, the size is
        that of the copy. BucketError.
        """
        here = await in_background(listing, self._root)
        if self._remote is None:
            return here
        found = {(one.project, one.name): one for one in here}
        for one in await in_background(self._remote.listing):
            found.setdefault((one.project, one.name), one)
        return [found[names] for names in sorted(found)]

    async def bring(self, key: str) -> None:
        """Bring what is new in the bucket here; BucketError."""
        if self._remote:
            await in_background(self._remote.pull, key)

    def job_ended(self, job: LiveJob) -> None:
        """Send what it has changed in its workspace to the bucket, soon."""
        key = job.shape.workspace
        if not key or self._remote is None:
            return
        is_idle = key not in self._sending
        self._sending[key] = True
        if is_idle:
            self._core.spawn(self._send(key, self._remote), "send-workspace")

    async def _send(self, key: str, remote: RemoteWorkspaces) -> None:
        try:
            while self._sending[key]:
                self._sending[key] = False
                try:
                    await in_background(remote.push, key)
                except OSError as error:  # `look` tries it again
                    log.warning(
                        "a workspace could not be sent", key=key, error=str(error)
                    )
        finally:
            del self._sending[key]

    async def _send_unused(self, found: Sequence[Workspace]) -> None:
        """Send what was not sent at the end of a job: nobody was there, the bucket did
        not answer, or somebody else has changed it.
        """
        used = self._used_now()
        for one in found:
            key = workspace_key(one.project, one.name)
            if self._remote and key not in used and key not in self._sending:
                self._sending[key] = True
                await self._send(key, self._remote)

    # --- what is told and removed ---

    async def look(self) -> None:
        """Measure all, warn of what is nearly full or will be removed, and remove what
        nobody has used for long.
        """
        found = await self._measure()
        for project in sorted(self._sizes):
            self._tell_of_quota(project)
        used = self._used_now()
        for one in found:
            key = workspace_key(one.project, one.name)
            is_first_used = key in self._first_used
            await self._tend(one, is_used=key in used or is_first_used)
            self._first_used.discard(key)
        await self._send_unused(found)
        await in_background(remove_set_aside, self._root)

    def _used_now(self) -> Mapping[str, list[str]]:
        """The jobs that wait or run, by their workspace."""
        found: dict[str, list[str]] = defaultdict(list)
        for job in self._core.view.jobs.values():
            if job.shape.workspace:
                found[job.shape.workspace].append(job.id)
        return found

    def _tell_of_quota(self, project: str) -> None:
        quota = self._quota(project)
        size = self._sizes[project]
        kind = _kind_of(size, quota)
        if kind is None:
            self._told.pop(project, None)
            return
        if self._told.get(project) == kind:
            return
        self._told[project] = kind
        used = format_gb(size / _GB)
        most = format_gb(quota / _GB)
        warning = (
            f"the workspaces of its project take {used} of their quota of {most}: over"
            " it, no new jobs with a workspace are taken"
        )
        info: dict[str, Any] = {"project": project, "size": size, "quota": quota}
        jobs = [
            job_id
            for key, job_ids in self._used_now().items()
            if workspace_names(key)[0] == project
            for job_id in job_ids
        ]
        warn_jobs(self._core, jobs, warning, kind, info)

    async def _tend(self, one: Workspace, *, is_used: bool) -> None:
        """Note that it is used, warn that it will go, or remove it."""
        now = self._core.clock()
        use = await in_background(use_of, one.path)
        if use is None or is_used or (one.changed_at or 0.0) > use.used_at:
            await self._note_use(one, use, now, is_used=is_used)
            return
        if not self._settings.remove_after_days or not use.by_job:
            return
        goes_at = self.goes_at(use)
        if use.warned_at is None and now >= goes_at - self._notice_s:
            self._tell(one, EventKind.WORKSPACE_EXPIRES, goes_at=self.goes_at(use, now))
            warned = replace(use, warned_at=now)
            await in_background(note_use, one.path, warned)
        elif use.warned_at is not None and now >= self.goes_at(use, use.warned_at):
            await self._remove(one, use)

    async def _note_use(
        self, one: Workspace, use: Use | None, now: float, *, is_used: bool
    ) -> None:
        """Note that a job uses it, or that it has changed. One of which nothing is
        known counts as used now.
        """
        is_new = use is None or is_used
        used_at = now if is_new else min(one.changed_at or now, now)
        if use is None or used_at > use.used_at:
            by_job = is_used or (use is not None and use.by_job)
            await in_background(note_use, one.path, Use(used_at, by_job=by_job))

    async def _remove(self, one: Workspace, use: Use) -> None:
        """Remove it, unless it is used, or its `use` is another one now: that is noted
        before a job is queued. The copy here goes last and without a pause: whoever
        submits a job afterwards gets an empty one, and whoever did so meanwhile keeps
        it, and it goes to the bucket again.
        """
        key = workspace_key(one.project, one.name)
        if key in self._used_now() or use_of(one.path) != use:
            return
        if self._remote:
            try:
                await in_background(self._remote.remove, key)
            except OSError as error:
                log.warning("a workspace stays in its bucket", error=str(error))
                return
        if key in self._used_now() or use_of(one.path) != use:
            return
        try:
            set_aside(one.path)
        except OSError as error:
            log.warning(
                "a workspace that nobody uses cannot be removed",
                path=str(one.path),
                error=str(error),
            )
            return
        self._tell(one, EventKind.WORKSPACE_REMOVED)

    def _tell(self, one: Workspace, kind: EventKind, **more: float) -> None:
        info = {"project": one.project, "workspace": one.name, "size": one.size, **more}
        self._core.emit([Event(kind, self._core.clock(), (), None, info)])

    @property
    def _notice_s(self) -> float:
        return self._settings.notice_days * _DAY_S

    def goes_at(self, use: Use, warned_at: float | None = None) -> float:
        """When a workspace goes that nobody uses from now on (UTC seconds): never
        before the time of notice is over.
        """
        at = use.used_at + self._settings.remove_after_days * _DAY_S
        return at if warned_at is None else max(at, warned_at + self._notice_s)

    def shown(self, found: Sequence[Workspace]) -> list[dict[str, Any]]:
        """What is known of the use of these, for the API. Blocks on the disk."""
        return [self._shown(one) for one in found]

    def _shown(self, one: Workspace) -> dict[str, Any]:
        use = use_of(one.path)
        goes_at = None
        if use and use.by_job and self._settings.remove_after_days:
            goes_at = self.goes_at(use, use.warned_at)
        return {
            "used_at": use.used_at if use else one.changed_at,
            "removed_at": goes_at,
            "quota": self._quota(one.project) or None,
        }


def _kind_of(size: int, quota: int) -> EventKind | None:
    """What is to be told of so many bytes."""
    if quota and size > quota:
        return EventKind.WORKSPACE_OVER_QUOTA
    if quota and size > _NEARLY * quota:
        return EventKind.WORKSPACE_NEARLY_FULL
    return None
