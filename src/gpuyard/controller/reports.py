"""Reports of agents: nodes that join and leave, attempts that start and end, progress
and checkpoints.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from gpuyard.controller import transitions
from gpuyard.controller.artifacts import Artifacts
from gpuyard.controller.attempt_outcome import outcome_of
from gpuyard.controller.checkpoints import Checkpoints, ResumeWatch
from gpuyard.controller.core import Core
from gpuyard.controller.cpu_watch import CpuWatch
from gpuyard.controller.disk_alarms import DiskAlarms
from gpuyard.controller.gangs import (
    Gangs,
    is_share_on,
)
from gpuyard.controller.gpu_alarms import GpuAlarms
from gpuyard.controller.gpu_changes import gpu_changes, is_news
from gpuyard.controller.interruptions import Interruptions
from gpuyard.controller.job_warnings import warn_of_limited_log
from gpuyard.controller.launching import Launching
from gpuyard.controller.metric_points import MetricPoints
from gpuyard.controller.node_access import NodeAccess
from gpuyard.controller.node_claims import NodeClaims
from gpuyard.controller.reconciliation import Reconciliation
from gpuyard.controller.requests import Requests
from gpuyard.controller.run_watch import RunWatch
from gpuyard.controller.silent_nodes import SilentNodes
from gpuyard.domain import wire
from gpuyard.domain.artifacts import ArtifactsSaved
from gpuyard.domain.errors import (
    GpuyardError,
    RefusedError,
)
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.gangs import attempt_and_rank
from gpuyard.domain.reasons import Reason
from gpuyard.domain.states import JobState
from gpuyard.providers.configured import Providers
from gpuyard.scheduler.attempts import LiveAttempt
from gpuyard.scheduler.nodes import REMOVED
from gpuyard.storage.blobs import Blobs

log = structlog.get_logger(__name__)
ProgressListener = Callable[[str, Mapping[str, Any], float], None]


class Reports:
    """Receives what providers report (`providers.base.Sink`)."""

    def __init__(
        self,
        core: Core,
        launching: Launching,
        requests: Requests,
        providers: Providers,
        blobs: Blobs,
        disks: DiskAlarms,
        gpu_alarms: GpuAlarms,
        access: NodeAccess,
    ) -> None:
        self._core = core
        self._access = access
        self._disks = disks
        self._gpu_alarms = gpu_alarms
        self._launching = launching
        self._requests = requests
        self._providers = providers
        self._gangs = Gangs(core)
        self._reconciliation = Reconciliation(
            core, launching, requests, providers, self._gangs, self._share_ended
        )
        self._claims = NodeClaims(core)
        self.checkpoints = Checkpoints(core, blobs)
        self.artifacts = Artifacts(core, blobs, access)
        self._resume_watch = ResumeWatch(core)
        self._cpu_watch = CpuWatch(core)
        self._run_watch = RunWatch(core)
        self._points = MetricPoints(core)
        self._interruptions = Interruptions(core)
        self.silent_nodes = SilentNodes(
            core, self._reconciliation.agent_attempts, self._end_silent
        )
        self.on_progress: ProgressListener | None = None

    # --- nodes ---

    async def node_joined(self, provider: str, hello: wire.Hello) -> wire.Welcome:
        """A node has connected: its GPUs can be used, and its attempts are compared
        with the ledger. RefusedError if it was removed.
        """
        core = self._core
        now = self._core.clock()
        if core.view.node(hello.node_id).state == REMOVED:
            raise RefusedError(f"{hello.name} was removed from the instance.")
        self._requests.capacity.node_joined()
        self.silent_nodes.heard(hello.node_id)
        hello = self._claims.believable(hello)
        self._reconciliation.connected(hello)
        row: dict[str, Any] = {
            "name": hello.name,
            "provider": provider,
            "state": "online",
            "reason": hello.problem,
            "boot_id": hello.boot_id,
            "cpus": hello.cpus,
            "memory_gb": hello.memory_gb,
            "limits": hello.limits,
            "seen_at": now,
            "version": hello.version,
        }
        changes = (
            Change(Table.NODES, hello.node_id, row),
            *gpu_changes(core.view, hello.node_id, hello.gpus),
        )
        info = {"node": hello.node_id, "state": "online"}
        core.emit([Event(EventKind.NODE_CHANGED, now, changes, None, info)])
        self._note_attempts(hello)
        await core.committed()
        core.spawn(self._reconciliation.reconcile(provider, hello), "reconcile")
        return wire.Welcome(core.epoch)

    def believable(self, attempt: LiveAttempt, end: wire.Ended) -> wire.Ended:
        """What an agent says of an end, as far as that can be."""
        return self._claims.ended(attempt, end)

    def has_certificate(self, node_id: str) -> bool:
        """Whether the node is a machine that has joined, which has a certificate."""
        return self._core.view.node(node_id).joined

    def _note_attempts(self, hello: wire.Hello) -> None:
        """Note the process ids, and that jobs in an unknown state are running."""
        core = self._core
        for held in hello.attempts:
            attempt_id, rank = attempt_and_rank(held.attempt_id)
            attempt = core.view.attempts.get(attempt_id)
            job = core.view.jobs.get(attempt.job_id) if attempt else None
            if attempt is None or job is None:
                continue
            if not is_share_on(attempt, rank, hello.node_id):
                continue
            if held.pid and not rank:
                core.pids[job.id] = held.pid
            if held.ran_s is not None and not rank:
                core.run_clock.note(attempt.id, self._claims.ran_s(attempt, held.ran_s))
            if job.state is JobState.UNKNOWN:
                core.emit([transitions.node_back(job, core.clock())])

    # --- silent nodes ---

    async def node_left(self, node_id: str) -> None:
        """The connection to the node broke.

        Its bookings stay and nothing new is placed there. Its attempts are taken to be
        still running.
        """
        core = self._core
        self._reconciliation.disconnected(node_id)
        known = core.view.nodes.get(node_id)
        if known is None or known.state == REMOVED:
            # The commit of its joining failed. This change alone would make an
            # incomplete row.
            return
        now = core.clock()
        values = {
            "state": "silent",
            "reason": "its agent is not connected",
            "seen_at": now,
        }
        self._disks.forget(node_id)
        self._gpu_alarms.forget(core.view.node(node_id).devices)
        change = Change(Table.NODES, node_id, values)
        info = {"node": node_id, "state": "silent"}
        core.emit([Event(EventKind.NODE_CHANGED, now, (change,), None, info)])
        self.silent_nodes.watch(node_id)

    async def node_claimed(self, node_id: str, address: str) -> None:
        """A second machine uses the certificate of the node."""
        await self._claims.claimed_from(node_id, address)

    def _end_silent(self, attempt: LiveAttempt, node_id: str, silent_s: float) -> None:
        message = f"its node said nothing for {silent_s:.0f} s"
        lost = self._gangs.lost_share(attempt, node_id, Reason.NODE_SILENT, message)
        self._share_ended(attempt, lost)

    # --- reports ---

    async def reported(
        self, node_id: str, bodies: Sequence[wire.NumberedReport]
    ) -> None:
        """Apply reports; returns after the commit, so that they can be
        acknowledged.
        """
        if self._core.view.node(node_id).state == REMOVED:
            return  # said before it heard of that
        ended = {
            report.body.attempt_id
            for report in bodies
            if isinstance(report.body, wire.Ended)
        }
        to_forget: dict[str, list[str]] = {}
        for report in bodies:
            body = report.body
            if isinstance(body, wire.Started) and body.attempt_id in ended:
                continue  # the report of its end, in the same batch, says all of that
            provider_name = self._applied(node_id, body)
            if provider_name is not None and isinstance(body, wire.Ended):
                to_forget.setdefault(provider_name, []).append(body.attempt_id)
        if ended:
            self._core.schedule()
        await self._core.committed(can_wait=True)
        for provider_name, attempt_ids in to_forget.items():
            provider = self._providers.node_provider(provider_name)
            if provider is not None:
                await provider.forget(node_id, attempt_ids)

    def _applied(self, node_id: str, body: Any) -> str | None:
        """As `_apply_report`; a fault of ours costs this report and no other, which
        would be repeated with it for ever. No end is left out: its job waits for it.
        """
        try:
            return self._apply_report(node_id, body)
        except GpuyardError:
            raise
        except Exception:
            if isinstance(body, wire.Ended):
                raise
            kind = type(body).__name__
            log.exception("a report is left out", node=node_id, kind=kind)
            return None

    def _apply_report(self, node_id: str, body: Any) -> str | None:
        """Apply one report; returns the provider whose node can forget the attempt, if
        that has ended.
        """
        if isinstance(body, wire.GpusSeen):
            self._gpus_seen(node_id, body)
            return None
        if isinstance(body, wire.InterruptionSeen):
            self._interruptions.seen(node_id, body.at)
            return None
        attempt_id, rank = attempt_and_rank(body.attempt_id)
        attempt = self._core.view.attempts.get(attempt_id)
        if attempt is None or not is_share_on(attempt, rank, node_id):
            # A late or repeated report of an attempt that has ended: it changes
            # nothing, and the node need not keep the attempt.
            is_end = isinstance(body, wire.Ended)
            return next(iter(self._providers)) if is_end else None
        if isinstance(body, wire.Ended):
            end = self._claims.ended(attempt, body)
            self._share_ended(attempt, self._gangs.note_end(attempt, rank, end))
            return attempt.provider
        if rank == 0:  # the first share speaks for all
            self._apply_news(attempt, body)
        return None

    def _apply_news(self, attempt: LiveAttempt, body: Any) -> None:
        """Apply a report of a live attempt that is not its end."""
        match body:
            case wire.Started():
                self._attempt_started(attempt, self._claims.started(attempt, body))
            case wire.ProgressSeen():
                self.progressed(body)
            case wire.UsageSeen():
                self._used(attempt, body)
            case wire.CheckpointSaved():
                self._checkpoint_saved(attempt, body)
            case ArtifactsSaved():
                self.artifacts.reported(attempt, body)
            case _:
                pass

    def _checkpoint_saved(
        self, attempt: LiveAttempt, body: wire.CheckpointSaved
    ) -> None:
        is_joined = self._core.view.node(attempt.node_id).joined
        if is_joined and not self._access.may_claim(attempt.id, body.sha256):
            log.warning("a node claims a blob of others", attempt=attempt.id)
            return
        self.checkpoints.saved(attempt, body)

    def _attempt_started(self, attempt: LiveAttempt, body: wire.Started) -> None:
        job = self._core.view.jobs[attempt.job_id]
        self._core.pids[job.id] = body.pid
        if self._core.run_clock.ran_s(attempt.id) is None:
            self._core.run_clock.note(attempt.id, 0.0)
        if attempt.started_at is None:
            started = transitions.started(
                job, attempt, body.at, body.limits, facts=body.facts
            )
            self._core.emit([started], can_wait=True)

    def _share_ended(self, attempt: LiveAttempt, end: wire.Ended | None) -> None:
        """`end`: that of the attempt, if it was the last share."""
        if end is not None:
            self._launching.record_end(attempt, outcome_of(end), end.prefetched_next)

    def clock(self) -> float:
        """The server's time, UTC seconds."""
        return self._core.clock()

    def progressed(self, body: wire.ProgressSeen) -> None:
        """Record the progress of an attempt; ignored after its end."""
        core = self._core
        attempt = core.view.attempts.get(body.attempt_id)
        if attempt is None:
            return
        core.progress[attempt.job_id] = body.progress
        core.writer.set_progress(attempt.job_id, body.progress)
        self._resume_watch.progressed(attempt, body.progress)
        if body.no_gpu:
            self._cpu_watch.found_no_gpu(attempt, body.no_gpu)
        if body.not_finite:
            self._run_watch.loss_not_finite(attempt, body.not_finite)
        self._add_points(attempt, body.points)
        if self.on_progress:
            self.on_progress(attempt.job_id, body.progress, core.clock())

    def points_seen(self, attempt_id: str, points: Sequence[wire.SeriesPoint]) -> None:
        """Record what an attempt uses, as its provider says; ignored after its end."""
        attempt = self._core.view.attempts.get(attempt_id)
        if attempt is not None:
            self._add_points(attempt, points)

    def _used(self, attempt: LiveAttempt, body: wire.UsageSeen) -> None:
        if body.log_limit_gb is not None:
            warn_of_limited_log(self._core, attempt, body.log_limit_gb)
        self._add_points(attempt, body.points)

    def _add_points(
        self, attempt: LiveAttempt, points: Sequence[wire.SeriesPoint]
    ) -> None:
        self._points.add(attempt, points)
        self._run_watch.points_seen(attempt, points)

    def _gpus_seen(self, node_id: str, body: wire.GpusSeen) -> None:
        if body.disk:
            self._disks.seen(node_id, self._claims.own_users(node_id, body.disk))
        own, _ = self._claims.own_gpus(node_id, body.gpus)
        self._gpu_alarms.seen(node_id, own)
        changes = tuple(
            change
            for change in gpu_changes(self._core.view, node_id, own)
            if is_news(self._core.view, change)
        )
        if not changes:
            return  # only readings, which the provider keeps
        info = {"node": node_id, "gpus": len(body.gpus)}
        now = self._core.clock()
        event = Event(EventKind.NODE_CHANGED, now, changes, None, info)
        self._core.emit([event], can_wait=True)
        self._core.schedule()
