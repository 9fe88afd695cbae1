"""Advance reservations: GPUs or nodes that people have booked for a project or a user
from one time to another. (The reservations of waiting jobs are in `reservation`.)

Each has GPUs of its own, which `advance_gpus` chooses. What one keeps from a job does
not exist for that job. It keeps nothing from jobs of its holder, from preemptible jobs,
which leave when the holder's jobs come, and from jobs that end before it begins.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpuyard.domain.cost_keys import INSTANCE_OWNER
from gpuyard.domain.shape import Placement
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.nodes import Node, Space
from gpuyard.scheduler.parties import NO_SHARES, ShareKey


@dataclass(slots=True, eq=False)
class AdvanceReservation:
    """GPUs from `begins_at` until `ends_at` (UTC seconds) for a `project` or a `user`.

    `gpus` of `gpu_class` (empty: any) on `node` (empty: any; a name or an id). Without
    `gpus`, it is all of that node: its GPUs, cores and memory.

    `shares` are what it has, by node: its GPUs, and their part of cores and memory.
    """

    id: str
    begins_at: float
    ends_at: float
    project: str | None = None
    user: str | None = None
    gpus: int | None = None
    gpu_class: str = ""
    node: str = ""
    shares: dict[str, Placement] = field(default_factory=dict[str, Placement])
    # What is left of each share, and of which share and room that was computed.
    _left: dict[str, tuple[Placement, Space, Placement]] = field(
        default_factory=dict[str, tuple[Placement, Space, Placement]]
    )

    def left_on(self, node: Node) -> Placement:
        """What it keeps on the node now: its GPUs, and what is left of its cores and
        memory.
        """
        share = self.shares[node.id]
        room = node.free
        known = self._left.get(node.id)
        # A node's room is a new object whenever its bookings have changed.
        if known is not None and known[0] is share and known[1] is room:
            return known[2]
        left = _left_of(share, node)
        self._left[node.id] = share, room, left
        return left

    def is_held_by(self, job: LiveJob) -> bool:
        """True if the job is one of the holder's."""
        if self.project is not None:
            return job.project == self.project
        return self.user == (job.owner or INSTANCE_OWNER)

    def overlaps(self, other: "AdvanceReservation") -> bool:
        """True if both last at one moment."""
        return self.begins_at < other.ends_at and other.begins_at < self.ends_at

    def has_begun(self, now: float) -> bool:
        """True from its begin on."""
        return self.begins_at <= now

    def uuids(self) -> set[str]:
        """Its GPUs."""
        return {uuid for share in self.shares.values() for uuid in share.gpu_uuids}


@dataclass(slots=True)
class AdvanceTable:
    """All advance reservations. `coming` are those that have not ended, the first to
    begin first. `outdated`: their GPUs must be chosen again.
    """

    by_id: dict[str, AdvanceReservation] = field(
        default_factory=dict[str, AdvanceReservation]
    )
    coming: list[AdvanceReservation] = field(default_factory=list[AdvanceReservation])
    outdated: bool = False
    _phases: tuple[tuple[str, int], ...] = ()
    _projects: set[str] = field(default_factory=set[str])
    _users: set[str] = field(default_factory=set[str])

    def add(self, booked: AdvanceReservation) -> None:
        """Add or replace one."""
        before = self.by_id.get(booked.id)
        if before is not None:
            booked.shares = before.shares
        self.by_id[booked.id] = booked
        self._changed()

    def remove(self, reservation_id: str) -> None:
        """Remove one; idempotent."""
        if self.by_id.pop(reservation_id, None) is not None:
            self._changed()

    def _changed(self) -> None:
        self.outdated = True
        every = self.by_id.values()
        self._projects = {one.project for one in every if one.project is not None}
        self._users = {one.user for one in every if one.user is not None}

    def reserved_for(self, project: str | None, owner: str | None) -> ShareKey:
        """The project and the user of a job, if any reservation is theirs."""
        if not self.by_id:
            return NO_SHARES
        user = owner or INSTANCE_OWNER
        return (
            project if project and project in self._projects else "",
            user if user in self._users else "",
        )

    def refresh(self, now: float, notice_s: float) -> bool:
        """Note what has ended by `now` (UTC seconds); returns whether the GPUs must be
        chosen again, because something changed, or one begins or is about to.
        """
        if not self.by_id and not self.coming:
            return False
        found = [one for one in self.by_id.values() if now < one.ends_at]
        self.coming = sorted(found, key=lambda one: (one.begins_at, one.id))
        phases = tuple((one.id, _phase(one, now, notice_s)) for one in self.coming)
        has_changed = self.outdated or phases != self._phases
        self._phases = phases
        self.outdated = False
        return has_changed

    def next_change(self, now: float, notice_s: float) -> float | None:
        """When (UTC seconds) one next begins, ends or is about to begin."""
        times = [
            at
            for one in self.coming
            for at in (one.begins_at - notice_s, one.begins_at, one.ends_at)
            if at > now
        ]
        return min(times, default=None)

    def current(self, now: float) -> list[AdvanceReservation]:
        """Those that hold now."""
        return [one for one in self.coming if one.has_begun(now)]

    def keeping_out(
        self, job: LiveJob, now: float, end: float, notice_s: float
    ) -> tuple[AdvanceReservation, ...]:
        """Those whose GPUs the job may not use if it starts now and ends at `end` at
        the latest. One without a time limit is taken to run for `notice_s`.
        """
        if job.preemptible:
            return ()
        until = min(end, now + notice_s) if job.timeout_s is None else end
        return tuple(
            one
            for one in self.coming
            if one.begins_at < until and not one.is_held_by(job)
        )

    def keeps_from_prefetching(self, node_id: str, now: float, notice_s: float) -> bool:
        """True if something is kept on the node: what is prefetched may take any place
        there.
        """
        return any(
            node_id in one.shares and one.begins_at < now + notice_s
            for one in self.coming
        )


def _phase(one: AdvanceReservation, now: float, notice_s: float) -> int:
    """0 long before its begin, 1 shortly before, 2 while it holds."""
    return (one.begins_at - notice_s <= now) + (one.begins_at <= now)


def whole_shares(
    reservations: Iterable[AdvanceReservation],
) -> dict[str, list[Placement]]:
    """What these have on each node."""
    whole: dict[str, list[Placement]] = {}
    for one in reservations:
        for node_id, share in one.shares.items():
            whole.setdefault(node_id, []).append(share)
    return whole


def kept_shares(
    reservations: Iterable[AdvanceReservation], nodes: Mapping[str, Node]
) -> dict[str, list[Placement]]:
    """What these keep on each node now: their GPUs, and what is left of their cores
    and memory.
    """
    kept: dict[str, list[Placement]] = {}
    for one in reservations:
        for node_id in one.shares:
            node = nodes.get(node_id)
            if node is not None:
                kept.setdefault(node_id, []).append(one.left_on(node))
    return kept


def _left_of(share: Placement, node: Node) -> Placement:
    """The share without the cores and memory that jobs on its GPUs use."""
    used = list(_on_gpus_of(share, node.bookings.values()))
    cpus = share.cpus - sum(one.cpus for one in used)
    memory_gb = share.memory_gb - sum(one.memory_gb for one in used)
    return Placement(
        share.node_id, share.gpu_uuids, max(0.0, cpus), max(0.0, memory_gb)
    )


def _on_gpus_of(share: Placement, bookings: Iterable[Placement]) -> Iterator[Placement]:
    uuids = set(share.gpu_uuids)
    for booking in bookings:
        if not uuids.isdisjoint(booking.gpu_uuids):
            yield booking
