"""The pass of advance reservations: while one holds, jobs of its holder start on its
GPUs before all others, whatever their turn. What was lent to others, `take_back` gets.
"""

import heapq
from collections.abc import Iterable, Iterator

from gpuyard.domain.shape import Placement
from gpuyard.scheduler.advance import AdvanceReservation
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.nodes import Node, Space
from gpuyard.scheduler.placement import place_within
from gpuyard.scheduler.queue import RankedLine
from gpuyard.scheduler.reservation import Reservations
from gpuyard.scheduler.view import View

TRIED = 64
"""After so many waiting jobs that find no place on a reservation, the rest wait for the
next decision.
"""


def starts(
    view: View, now: float, reservations: Reservations
) -> Iterator[tuple[LiveJob, tuple[Placement, ...]]]:
    """The jobs that can start on what is reserved for them, with their places. The
    caller starts each before it asks for the next.
    """
    for booked in view.advance.current(now):
        nodes = _nodes_with_room(view, booked)
        heads = heads_of_holder(view, booked) if nodes else []
        tried = 0
        while heads and nodes and tried < TRIED:
            _, bucket = heapq.heappop(heads)
            job = view.queue.head(bucket)
            if job is None or not may_start(view, job, booked):
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


def heads_of_holder(view: View, booked: AdvanceReservation) -> RankedLine:
    """The first jobs of the holder's buckets, in order."""
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


def may_start(view: View, job: LiveJob, booked: AdvanceReservation) -> bool:
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
        node.id: only_gpus_of(
            booked.shares[node.id], reservations.space_on(node, job, float("inf"))
        )
        for node in nodes
    }


def only_gpus_of(share: Placement, space: Space) -> Space:
    """The space, but of its GPUs only those of the share."""
    devices = tuple(one for one in space.devices if one.uuid in share.gpu_uuids)
    return Space(space.cpus, space.memory_gb, devices)
