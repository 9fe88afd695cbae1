"""Reservations: let later jobs pass waiting ones without delaying them.

This is EASY backfill. A job that cannot start reserves the nodes where it can start
first, at the time when enough attempts there have ended at the latest: at their
timeout, counted from their start, plus a margin. For attempts without a timeout that
time is infinity, and the places are reserved all the same.

A later job may start if it leaves the reserved places free at that time, or if it has
ended by then. Jobs that do not fit even on empty nodes (because their node is offline
or in quarantine) reserve nothing and delay no other job. Each reservation uses what
earlier ones leave.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from gpuyard.domain.shape import Placement, Shape
from gpuyard.domain.states import AttemptState
from gpuyard.scheduler.advance import AdvanceReservation, kept_shares, whole_shares
from gpuyard.scheduler.fitting import (
    fit,
    has_amounts,
    may_use,
    share_of,
    suitable_devices,
)
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.nodes import Node, Space
from gpuyard.scheduler.placement import fitting, place
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.release_times import Bound
from gpuyard.scheduler.view import View

LOOKED_AT = 16
"""How many nodes beyond those it needs a reservation looks at closely if their bounds
are equal.
"""


@dataclass(frozen=True, slots=True)
class PlannedStart:
    """`job` gets `placements` at `at` (UTC seconds) at the latest.

    `spare`: what its nodes have besides at that time, by node.
    """

    job: LiveJob
    at: float
    placements: tuple[Placement, ...]
    spare: dict[str, Space]


@dataclass(frozen=True, slots=True, order=True)
class _Wait:
    """How long a share must wait on a node: until when at the latest, and what is still
    missing then (GPUs, cores, gigabytes) if that is infinity.
    """

    until: float
    missing: tuple[int, float, float]
    has_gpus: bool
    node_id: str


class Reservations:
    """The reservations of one decision, in the order in which they were made."""

    def __init__(self, view: View, now: float, policy: Policy) -> None:
        self.made: list[PlannedStart] = []
        self._view = view
        self._now = now
        self._policy = policy
        self._tried = 0
        self._most = policy.reserved_heads
        self._ends: dict[str, float] = {}
        self._rooms: dict[str, dict[float, Space]] = {}
        self._promised: dict[str, list[Placement]] = {}
        self._kept: dict[tuple[str, ...], dict[str, list[Placement]]] = {}
        self._whole: dict[tuple[str, ...], _KeptFromJob] = {}

    def backfill(
        self, job: LiveJob, waiting: Sequence[LiveJob]
    ) -> tuple[Placement, ...] | None:
        """Where `job` may start now without delaying the jobs in `waiting`, which come
        before it; None if nowhere.

        From one call to the next, `waiting` may only grow at its end.
        """
        for other in waiting[self._tried :]:
            if len(self.made) < self._most:
                self.reserve(other)
        self._tried = len(waiting)
        return place(self._view, job.shape, self.spaces(job, self.latest_end(job.id)))

    def hold(self, job: LiveJob, placements: tuple[Placement, ...]) -> None:
        """Keep `placements` for `job`, for which they are being freed; no other job
        starts there.
        """
        self._promise(job, -math.inf, placements)
        self._most += 1

    def reserve(self, job: LiveJob) -> PlannedStart | None:
        """Reserve places for `job` where it can start first; None if it fits nowhere
        beside the earlier reservations.
        """
        # All of their cores, because those who use them now may end before.
        kept = self._wholly_kept_from(job)
        waits = self._shortest_waits(job.shape, kept)
        if len(waits) < job.shape.nodes:
            return None
        at = waits[-1].until
        nodes = [self._view.nodes[wait.node_id] for wait in waits]
        placements = tuple(self._share(node, job.shape, at, kept) for node in nodes)
        return self._promise(job, at, placements)

    def _promise(
        self, job: LiveJob, at: float, placements: tuple[Placement, ...]
    ) -> PlannedStart:
        spare = {
            share.node_id: self._room(self._view.nodes[share.node_id], at).minus(share)
            for share in placements
        }
        for share in placements:
            self._promised.setdefault(share.node_id, []).append(share)
        self.made.append(PlannedStart(job, at, placements, spare))
        return self.made[-1]

    def take(self, job: LiveJob, placements: Sequence[Placement]) -> None:
        """`job` starts on `placements`. What it may still hold at the time of a
        reservation is not spare then.
        """
        end = self.latest_end(job.id)
        self._kept.clear()
        for share in placements:
            if share.offer:
                continue
            self._rooms.pop(share.node_id, None)
            for reservation in self.made:
                spare = reservation.spare.get(share.node_id)
                if spare is not None and may_outlast(end, reservation.at):
                    reservation.spare[share.node_id] = spare.minus(share)

    def latest_end(self, holder: str) -> float:
        """When an attempt, or a job that starts now, has ended at the latest (UTC
        seconds); infinity if it has no timeout.

        An attempt that does not run yet is taken to start now. One that should have
        ended already may end at any moment.
        """
        if holder not in self._ends:
            self._ends[holder] = self._latest_end(holder)
        return self._ends[holder]

    def _latest_end(self, holder: str) -> float:
        if holder in self._view.cooling:
            return max(self._now, self._view.cooling[holder])
        attempt = self._view.attempts.get(holder)
        if attempt is not None and attempt.state is AttemptState.ENDING:
            return self._now + self._policy.end_margin_s
        job = self._view.jobs.get(attempt.job_id if attempt is not None else holder)
        if job is None or job.timeout_s is None:
            return math.inf
        started_at = self._now
        if attempt is not None and attempt.started_at is not None:
            started_at = attempt.started_at
        return max(self._now, started_at + job.timeout_s + self._policy.end_margin_s)

    def kept_out_by(self, job: LiveJob) -> tuple[AdvanceReservation, ...]:
        """The advance reservations whose GPUs the job may not use if it starts now."""
        advance = self._view.advance
        if not advance.coming:
            return ()
        end = self.latest_end(job.id)
        notice_s = self._policy.reservation_notice_s
        return advance.keeping_out(job, self._now, end, notice_s)

    def kept_from(self, job: LiveJob) -> dict[str, list[Placement]]:
        """What advance reservations keep from the job, by node."""
        kept_out_by = self.kept_out_by(job)
        key = tuple(one.id for one in kept_out_by)
        if key not in self._kept:
            self._kept[key] = kept_shares(kept_out_by, self._view.nodes)
        return self._kept[key]

    def _wholly_kept_from(self, job: LiveJob) -> "_KeptFromJob":
        """All that advance reservations have which keep the job out."""
        kept_out_by = self.kept_out_by(job)
        key = tuple(one.id for one in kept_out_by)
        if key not in self._whole:
            self._whole[key] = _KeptFromJob(whole_shares(kept_out_by))
        return self._whole[key]

    def spaces(self, job: LiveJob, end: float) -> dict[str, Space]:
        """What a job that ends at `end` at the latest may use now of each node with
        reservations, where it would fit without them.
        """
        bound = {
            node_id
            for reservation in self.made
            if may_outlast(end, reservation.at)
            for node_id in reservation.spare
        }
        known = self._view.nodes
        # Most are full; where it does not fit anyway, nothing need be kept.
        with_room = {
            node_id
            for node_id in bound
            if node_id in known and has_amounts(known[node_id].free, job.shape)
        }
        if kept_out_by := self.kept_out_by(job):
            with_room.update(
                node_id
                for node_id in self._view.index.with_room(job.shape)
                if any(node_id in one.shares for one in kept_out_by)
            )
        return {
            node_id: self.space_on(known[node_id], job, end) for node_id in with_room
        }

    def space_on(self, node: Node, job: LiveJob, end: float) -> Space:
        """What a job that ends at `end` at the latest may use now of the node."""
        space = node.free
        for reservation in self.made:
            spare = reservation.spare.get(node.id)
            if spare is not None and may_outlast(end, reservation.at):
                space = space.within(spare)
        for one in self.kept_out_by(job):
            if node.id in one.shares:
                space = space.minus(one.left_on(node))
        return space

    def binds_from(self, end: float) -> float:
        """The time (UTC seconds) of the last reservation that binds a job which ends at
        `end` at the latest. All of these bind every job that may outlast that time.
        """
        return max(
            (made.at for made in self.made if may_outlast(end, made.at)),
            default=-math.inf,
        )

    def _shortest_waits(self, shape: Shape, kept: "_KeptFromJob") -> list[_Wait]:
        """The shortest waits for shares of the shape, one for each node that it needs;
        fewer if there are not enough nodes.
        """
        best: list[_Wait] = []
        for looked_at, (bound, node) in enumerate(self._nodes(shape)):
            if len(best) >= shape.nodes:
                extra = looked_at - shape.nodes
                if not self._may_be_better(bound, best[shape.nodes - 1], extra):
                    break
            if wait := self._wait(node, shape, kept):
                insort(best, wait)
        return best[: shape.nodes]

    def _may_be_better(self, bound: Bound, worst: _Wait, extra: int) -> bool:
        """True if a node with this bound may have a shorter wait than `worst`. `extra`:
        how many nodes beyond those needed were looked at.
        """
        not_before, missing_gpus, _ = bound
        by_bound = max(self._now, not_before), missing_gpus
        by_wait = worst.until, worst.missing[0]
        if by_bound != by_wait:
            return by_bound < by_wait
        # Equal in time and GPUs. For cores and memory alone, look at a few more nodes.
        return any(worst.missing[1:]) and extra < LOOKED_AT

    def _nodes(self, shape: Shape) -> Iterable[tuple[Bound, Node]]:
        """The nodes that could hold a share if they were empty, each with a bound for
        its wait, the least bound first.
        """
        view = self._view
        if shape.gpu_uuids:
            return [
                ((0.0, 0, node_id), view.nodes[node_id])
                for node_id in sorted(view.nodes_of(shape.gpu_uuids))
            ]
        if not view.index.suitable_groups(shape):
            return ()
        view.release_times.refresh(view.nodes, self.latest_end)
        by_bound = (
            (bound, view.nodes[bound[-1]])
            for bound in view.release_times.soonest(shape.gpus)
        )
        if shape.gpus or shape.nodes == 1:
            return by_bound
        # Shares of a gang without GPUs may fit at once. The bounds do not show this, so
        # these nodes come first.
        fits_now = {node.id: node for node in fitting(view, shape)}
        first = (((0.0, 0, node_id), node) for node_id, node in fits_now.items())
        others = ((bound, node) for bound, node in by_bound if node.id not in fits_now)
        return chain(first, others)

    def _wait(self, node: Node, shape: Shape, kept: "_KeptFromJob") -> _Wait | None:
        """How long a share must wait on `node`; None if it does not fit even when the
        node is empty but for what is `kept` for others.
        """
        if not node.online or not may_use(node, shape):
            return None
        if fit(self._without_promised(node, kept.leaves(node)), shape) is None:
            return None
        shares = kept.on(node)
        ends = {self.latest_end(holder) for holder in node.bookings}
        ends.add(self._now)
        ends.discard(math.inf)
        times = sorted(ends)

        def fits(at: float) -> bool:
            return fit(_without(self._room(node, at), shares), shape) is not None

        # Room only grows with time.
        index = bisect_left(times, True, key=fits)
        until = times[index] if index < len(times) else math.inf
        room = _without(self._room(node, until), shares)
        missing = (
            max(0, shape.gpus - len(suitable_devices(room.devices, shape))),
            max(0.0, shape.cpus - room.cpus),
            max(0.0, shape.memory_gb - room.memory_gb),
        )
        return _Wait(until, missing, bool(node.devices), node.id)

    def _room(self, node: Node, at: float) -> Space:
        """The room at `at`: without attempts that have ended by then at the latest, and
        without what earlier reservations use.
        """
        # All waiting jobs ask about the same nodes. This cache halved the time of a
        # decision on 100 nodes.
        rooms = self._rooms.setdefault(node.id, {})
        if at not in rooms:
            still_booked = (
                share
                for holder, share in node.bookings.items()
                if may_outlast(self.latest_end(holder), at)
            )
            rooms[at] = node.space(still_booked)
        return self._without_promised(node, rooms[at])

    def _without_promised(self, node: Node, space: Space) -> Space:
        return _without(space, self._promised.get(node.id, ()))

    def _share(
        self, node: Node, shape: Shape, at: float, kept: "_KeptFromJob"
    ) -> Placement:
        """The share to reserve on `node`: devices that are free at `at` come before
        those whose attempts have no known end.
        """
        room = _without(self._room(node, at), kept.on(node))
        when_empty = self._without_promised(node, kept.leaves(node))
        free = suitable_devices(room.devices, shape)
        others = [
            device
            for device in suitable_devices(when_empty.devices, shape)
            if device not in free
        ]
        return share_of(node, (*free, *others)[: shape.gpus], shape)


class _KeptFromJob:
    """What is kept for others, by node."""

    def __init__(self, shares: Mapping[str, Sequence[Placement]]) -> None:
        self._shares = shares
        self._left: dict[str, Space] = {}

    def on(self, node: Node) -> Sequence[Placement]:
        """What is kept on the node."""
        return self._shares.get(node.id, ())

    def leaves(self, node: Node) -> Space:
        """What is left of the node when it is empty. All waiting jobs ask about the
        same nodes.
        """
        if node.id not in self._left:
            self._left[node.id] = _without(node.whole, self.on(node))
        return self._left[node.id]


def _without(space: Space, shares: Iterable[Placement]) -> Space:
    for share in shares:
        space = space.minus(share)
    return space


def may_outlast(end: float, at: float) -> bool:
    """True if what ends at `end` at the latest may still run at `at`. Infinity may
    outlast infinity, because both times are unknown.
    """
    return end > at or end == math.inf
