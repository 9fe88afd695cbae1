"""Reservations: what waiting jobs are promised, so that later ones may pass them without making them wait longer.

This is EASY backfill. A job that cannot start reserves the nodes where it can soonest, at the time when enough of the
attempts there have surely ended: at their timeout, counted from their start, plus a margin. Attempts without a timeout
never surely end; then the time is infinity and the resources stay reserved all the same. A later job may start if what
it takes is to spare at that time, or if it has surely ended before. Jobs that fit nowhere even when all is free (their
node is offline, or in quarantine) reserve nothing and stand in nobody's way. Each reservation is made on what earlier
ones leave.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from gpuyard.domain.shape import Placement, Shape
from gpuyard.domain.states import AttemptState
from gpuyard.scheduler.ends import Bound
from gpuyard.scheduler.fitting import fit, may_use, share_of, suitable
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.nodes import Node, Space
from gpuyard.scheduler.placement import fitting, place
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.view import View

LOOKED_AT = 16
"""How many nodes beyond those it needs a reservation looks at closely when their bounds are all alike."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """`job` is promised `placements` at `at` (UTC seconds). `spare` is what its nodes have beside them then."""

    job: LiveJob
    at: float
    placements: tuple[Placement, ...]
    spare: dict[str, Space]


@dataclass(frozen=True, slots=True, order=True)
class _Wait:
    """How long a node keeps a share waiting: until when, and for what if that is unknown (GPUs, cores, gigabytes)."""

    until: float
    lacking: tuple[int, float, float]
    has_gpus: bool
    node_id: str


class Reservations:
    """The reservations made in one decision, first come first."""

    def __init__(self, view: View, now: float, policy: Policy) -> None:
        self.made: list[Reservation] = []
        self._view, self._now, self._policy = view, now, policy
        self._tried, self._most = 0, policy.reserved_heads
        self._ends: dict[str, float] = {}
        self._rooms: dict[str, dict[float, Space]] = {}
        self._promised: dict[str, list[Placement]] = {}

    def backfill(self, job: LiveJob, waiting: Sequence[LiveJob]) -> tuple[Placement, ...] | None:
        """Where `job` may start now without delaying those in `waiting`, which stand before it; None if nowhere.

        `waiting` only ever grows at its end from one call to the next.
        """
        for other in waiting[self._tried :]:
            if len(self.made) < self._most:
                self.reserve(other)
        self._tried = len(waiting)
        return place(self._view, job.shape, self.spaces(self.surely_ends(job.id)))

    def hold(self, job: LiveJob, placements: tuple[Placement, ...]) -> None:
        """Keep `placements` free for `job`, for which they are being freed; whatever else could start there waits."""
        self._promise(job, -math.inf, placements)
        self._most += 1

    def reserve(self, job: LiveJob) -> Reservation | None:
        """Reserve for `job` where it can start soonest; None when it fits nowhere beside the earlier reservations."""
        chosen = self._soonest(job.shape)
        if len(chosen) < job.shape.nodes:
            return None
        at = chosen[-1].until
        nodes = [self._view.nodes[wait.node_id] for wait in chosen]
        return self._promise(job, at, tuple(self._share(node, job.shape, at) for node in nodes))

    def _promise(self, job: LiveJob, at: float, placements: tuple[Placement, ...]) -> Reservation:
        spare = {share.node_id: self._room(self._view.nodes[share.node_id], at).minus(share) for share in placements}
        for share in placements:
            self._promised.setdefault(share.node_id, []).append(share)
        self.made.append(Reservation(job, at, placements, spare))
        return self.made[-1]

    def take(self, job: LiveJob, placements: Sequence[Placement]) -> None:
        """`job` starts on `placements`: what it holds longer than until a reservation's time is no longer to spare."""
        end = self.surely_ends(job.id)
        for share in placements:
            if share.offer:
                continue
            self._rooms.pop(share.node_id, None)
            for reservation in self.made:
                if outlasts(end, reservation.at) and share.node_id in reservation.spare:
                    reservation.spare[share.node_id] = reservation.spare[share.node_id].minus(share)

    def surely_ends(self, holder: str) -> float:
        """When an attempt, or a job started now, has ended whatever happens (UTC seconds); infinity if that is unknown.

        One that has not begun to run counts from now, one that outlives its end may end at any moment.
        """
        if holder not in self._ends:
            self._ends[holder] = self._end(holder)
        return self._ends[holder]

    def _end(self, holder: str) -> float:
        attempt = self._view.attempts.get(holder)
        if attempt is not None and attempt.state is AttemptState.ENDING:
            return self._now + self._policy.end_margin_s
        job = self._view.jobs.get(attempt.job_id if attempt is not None else holder)
        if job is None or job.timeout_s is None:
            return math.inf
        began = attempt.started_at if attempt is not None and attempt.started_at is not None else self._now
        return max(self._now, began + job.timeout_s + self._policy.end_margin_s)

    def spaces(self, end: float) -> dict[str, Space]:
        """What a job that surely ends at `end` may take now of the nodes where something is promised."""
        spaces: dict[str, Space] = {}
        for reservation in self.made:
            if outlasts(end, reservation.at):
                for node_id, spare in reservation.spare.items():
                    space = spaces.get(node_id) or self._view.nodes[node_id].free
                    spaces[node_id] = space.within(spare)
        return spaces

    def binds_from(self, end: float) -> float:
        """Whatever outlasts this moment (UTC seconds) is bound by at least the reservations that bind what surely ends
        at `end`."""
        return max((made.at for made in self.made if outlasts(end, made.at)), default=-math.inf)

    def _soonest(self, shape: Shape) -> list[_Wait]:
        """The nodes on which shares of the shape can start soonest, as many as it needs if there are so many."""
        best: list[_Wait] = []
        for looked_at, (bound, node) in enumerate(self._nodes(shape)):
            if len(best) >= shape.nodes and not self._may_better(bound, best[shape.nodes - 1], looked_at - shape.nodes):
                break
            if wait := self._wait(node, shape):
                insort(best, wait)
        return best[: shape.nodes]

    def _may_better(self, bound: Bound, found: _Wait, vain: int) -> bool:
        if (max(self._now, bound[0]), bound[1]) < (found.until, found.lacking[0]):
            return True
        # As good in time and GPUs; what else it lacks is only worth a few more looks.
        alike = (max(self._now, bound[0]), bound[1]) == (found.until, found.lacking[0])
        return alike and any(found.lacking[1:]) and vain < LOOKED_AT

    def _nodes(self, shape: Shape) -> Iterable[tuple[Bound, Node]]:
        """The nodes that could hold a share when empty, those that may be free soonest first."""
        view = self._view
        if shape.gpu_uuids:
            homes = {device.node_id for uuid in shape.gpu_uuids if (device := view.devices.get(uuid))}
            return [((0.0, 0, home), view.nodes[home]) for home in sorted(home for home in homes if home is not None)]
        if not view.index.able(shape):
            return ()
        view.ends.refresh(view.nodes, self.surely_ends)
        found = ((bound, view.nodes[bound[-1]]) for bound in view.ends.soonest(shape.gpus))
        if shape.gpus or shape.nodes == 1:
            return found
        # Of a gang without GPUs a share may fit at once, which bounds do not tell.
        now = {node.id: node for node in fitting(view, shape)}
        first = (((0.0, 0, node_id), node) for node_id, node in now.items())
        return chain(first, ((bound, node) for bound, node in found if node.id not in now))

    def _wait(self, node: Node, shape: Shape) -> _Wait | None:
        """How long a share must wait on `node`; None when it does not even fit the empty node."""
        if not node.online or not may_use(node, shape) or fit(self._empty(node), shape) is None:
            return None
        ends = sorted({self._now, *(end for end in map(self.surely_ends, node.bookings) if end < math.inf)})
        index = bisect_left(ends, True, key=lambda at: fit(self._room(node, at), shape) is not None)
        until = ends[index] if index < len(ends) else math.inf
        room = self._room(node, until)
        lacking = (max(0, shape.gpus - len(suitable(room.devices, shape))),
                   max(0.0, shape.cpus - room.cpus), max(0.0, shape.memory_gb - room.memory_gb))  # fmt: skip
        return _Wait(until, lacking, bool(node.devices), node.id)

    def _room(self, node: Node, at: float) -> Space:
        """What is left at `at`, once all that surely end by then have ended and the earlier reservations are served."""
        # Every waiting job asks this of the same nodes: remembering it halved the time of a decision on 100 of them.
        rooms = self._rooms.setdefault(node.id, {})
        if at not in rooms:
            held = (share for holder, share in node.bookings.items() if outlasts(self.surely_ends(holder), at))
            rooms[at] = node.space(held)
        return self._beside_earlier(node, rooms[at])

    def _empty(self, node: Node) -> Space:
        return self._beside_earlier(node, node.whole)

    def _beside_earlier(self, node: Node, space: Space) -> Space:
        for share in self._promised.get(node.id, ()):
            space = space.minus(share)
        return space

    def _share(self, node: Node, shape: Shape, at: float) -> Placement:
        """The share reserved on `node`: devices that will be free come before those whose end is unknown."""
        sure = suitable(self._room(node, at).devices, shape)
        others = [device for device in suitable(self._empty(node).devices, shape) if device not in sure]
        return share_of(node, (*sure, *others)[: shape.gpus], shape)


def outlasts(end: float, at: float) -> bool:
    """True when what surely ends at `end` may still run at `at`; infinity may outlast infinity: both are unknown."""
    return end > at or end == math.inf
