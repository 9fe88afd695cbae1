"""The pass of advance reservations: while one holds, jobs of its holder start on its
GPUs before all others, whatever their turn. Jobs of others that run there are preempted
when the holder's jobs need the place.
"""

import heapq
from collections.abc import Iterable, Iterator

from gpuyard.domain.shape import Placement, Shape
from gpuyard.scheduler.advance import AdvanceReservation
from gpuyard.scheduler.fitting import fit, may_use, share_of
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.nodes import Node, Space
from gpuyard.scheduler.placement import place_within
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.queue import RankedLine
from gpuyard.scheduler.reservation import Reservations
from gpuyard.scheduler.victims import Victim
from gpuyard.scheduler.view import Preempt, View

TRIED = 64
"""After so many waiting jobs that find no place on a reservation, the rest wait for the
next decision.
"""
_Places = tuple[tuple[Placement, ...], list[Victim]]


def starts(
    view: View, now: float, reservations: Reservations
) -> Iterator[tuple[LiveJob, tuple[Placement, ...]]]:
    """The jobs that can start on what is reserved for them, with their places. The
    caller starts each before it asks for the next.
    """
    for booked in view.advance.current(now):
        nodes = _nodes_with_room(view, booked)
        heads = _heads_of_holder(view, booked) if nodes else []
        tried = 0
        while heads and nodes and tried < TRIED:
            _, bucket = heapq.heappop(heads)
            job = view.queue.head(bucket)
            if job is None or not _may_start(view, job, booked):
                continue
            spaces = _spaces(nodes, booked, job, reservations)
            placements = place_within(view, job.shape, spaces)
            if placements is None:
                tried += 1
                continue
            yield job, placements
            nodes = _nodes_with_room(view, booked)
            rank = view.queue.head_rank(bucket)
            if rank is not None:
                heapq.heappush(heads, (rank, bucket))


def _heads_of_holder(view: View, booked: AdvanceReservation) -> RankedLine:
    return view.queue.reserved.held_by(booked.project, booked.user)


def _nodes_with_room(view: View, booked: AdvanceReservation) -> list[Node]:
    """The nodes on which a GPU of the reservation is free, or all of a node if it is a
    whole one.
    """
    found: list[Node] = []
    for node_id, share in booked.shares.items():
        node = view.nodes[node_id]
        uuids = share.gpu_uuids
        is_free = any(device.uuid in uuids for device in node.free.devices)
        if booked.gpus is None or is_free:
            found.append(node)
    return found


def _may_start(view: View, job: LiveJob, booked: AdvanceReservation) -> bool:
    """True if the job is the holder's, may start, and needs what is reserved."""
    if not booked.is_held_by(job) or job.shape.model or job.id in view.promises:
        return False
    # Jobs without GPUs need none of them.
    needs_it = job.shape.gpus > 0 or booked.gpus is None
    return needs_it and view.usage.allows(job)


def _spaces(
    nodes: Iterable[Node],
    booked: AdvanceReservation,
    job: LiveJob,
    reservations: Reservations,
) -> dict[str, Space]:
    """What the job may use now of the GPUs of the reservation on these nodes."""
    return {
        node.id: _only_gpus_of(
            booked.shares[node.id], reservations.space_on(node, job, float("inf"))
        )
        for node in nodes
    }


def _only_gpus_of(share: Placement, space: Space) -> Space:
    devices = tuple(one for one in space.devices if one.uuid in share.gpu_uuids)
    return Space(space.cpus, space.memory_gb, devices)


def take_back(view: View, now: float, policy: Policy) -> list[Preempt]:
    """Preempt jobs of others on what is reserved, as far as jobs of its holder need the
    place; the preemptions are tentative in the view at once.
    """
    actions: list[Preempt] = []
    if not view.victims:
        return actions
    reservations = Reservations(view, now, policy)
    for booked in view.advance.current(now):
        failed = 0
        for job in _waiting_for(view, booked):
            if failed >= TRIED:
                break
            places = _places(view, booked, job, reservations)
            if places is None:
                failed += 1
                continue
            shares, victims = places
            for victim in victims:
                action = Preempt(victim.job.id, victim.attempt.id, job.id)
                view.apply_preemption(action, shares)
                actions.append(action)
    return actions


def _waiting_for(view: View, booked: AdvanceReservation) -> Iterator[LiveJob]:
    """The first jobs of the holder that wait: no more than could run there at once."""
    most = max(1, len(booked.uuids()))
    for _, bucket in _heads_of_holder(view, booked):
        for job in view.queue.first_jobs(bucket, most):
            if _may_start(view, job, booked):
                yield job


def _places(
    view: View, booked: AdvanceReservation, job: LiveJob, reservations: Reservations
) -> _Places | None:
    """Where the job can start once these victims have left; None if nowhere. Nodes with
    the fewest victims come first.
    """
    shape = job.shape
    kept = reservations.kept_from(job)
    found: list[tuple[int, str, Placement, list[Victim]]] = []
    for node_id, share in booked.shares.items():
        node = view.nodes[node_id]
        if not node.online or not may_use(node, shape):
            continue
        promised = [
            one
            for promise in view.promises.values()
            for one in promise.placements
            if one.node_id == node_id
        ]
        taken = [*promised, *kept.get(node_id, ())]
        lent = _lent(view, booked, share)
        on_node = _place_on(node, share, shape, taken, lent)
        if on_node is not None:
            place, victims = on_node
            found.append((len(victims), node_id, place, victims))
    found.sort(key=lambda one: one[:2])
    chosen = found[: shape.nodes]
    # One on several nodes is preempted once.
    victims = {victim.attempt.id: victim for one in chosen for victim in one[3]}
    if len(chosen) < shape.nodes or not victims:
        return None
    return tuple(one[2] for one in chosen), list(victims.values())


def _lent(view: View, booked: AdvanceReservation, share: Placement) -> list[Victim]:
    """The jobs of others on this part of the reservation, those to preempt first come
    first.
    """
    bookings = view.nodes[share.node_id].bookings
    return [
        victim
        for victim in view.victims.on(share.node_id)
        if not booked.is_held_by(victim.job)
        and (
            booked.gpus is None
            or not set(share.gpu_uuids).isdisjoint(
                bookings[victim.attempt.id].gpu_uuids
            )
        )
    ]


def _place_on(
    node: Node,
    share: Placement,
    shape: Shape,
    taken: list[Placement],
    victims: list[Victim],
) -> tuple[Placement, list[Victim]] | None:
    """The place on this node once as few victims as possible have left."""
    leaving: list[Victim] = []

    def devices():
        gone = {victim.attempt.id for victim in leaving}
        staying = [
            booking for holder, booking in node.bookings.items() if holder not in gone
        ]
        space = _only_gpus_of(share, node.space([*staying, *taken]))
        return fit(space, shape)

    for victim in victims:
        if devices() is not None:
            break
        leaving.append(victim)
    if devices() is None:
        return None
    # Later victims may make earlier ones unnecessary.
    for victim in leaving[:]:
        leaving.remove(victim)
        if devices() is None:
            leaving.append(victim)
    chosen = devices()
    assert chosen is not None
    return share_of(node, chosen, shape), leaving
