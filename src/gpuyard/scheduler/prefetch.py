"""Prefetching: sends short jobs to a node before a place is free, so that the node need
not wait for a commit between two of them.

A prefetched attempt books nothing: it takes over the place of an attempt of its shape
that ends on the node. A node gets as many as could end there before a decision of the
server arrives, and further ones when a quarter of these have started, so that many
share a commit. An attempt that waits much longer than that is withdrawn.
"""

import math
from collections.abc import Iterable, Iterator, Set

from gpuyard.domain.shape import Shape
from gpuyard.scheduler.fair_order import FairOrder, fair_order
from gpuyard.scheduler.fitting import may_use, provider_for
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.nodes import Node
from gpuyard.scheduler.parties import NO_SHARES, ShareKey
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.prefetch_sites import PrefetchSite
from gpuyard.scheduler.queue import Bucket
from gpuyard.scheduler.ranking import Ranking
from gpuyard.scheduler.view import View

# From the end of a job to the start of the next one through the server: two commits and
# two messages, on a slow disk.
_TURNAROUND_S = 0.05
# For longer jobs the gap between two does not matter, but a wrong choice does.
_SHORT_JOB_S = 0.25
_MOST_PER_NODE = 64
# A node gets further ones when this part of its limit is free.
_REFILLED_PART = 0.25


def plan_prefetches(
    view: View, now: float, policy: Policy, providers: Set[str]
) -> Iterator[tuple[LiveJob, str]]:
    """Jobs to prefetch, each with its node, in the order that the last decision left.
    The caller takes each job out of the queue before it asks for the next.

    `providers`: those whose nodes accept prefetched attempts.
    """
    short_shapes = set(view.prefetch_sites.short_shapes(_SHORT_JOB_S))
    queue = view.queue
    if not short_shapes or queue.has_unranked:
        return
    ranking = Ranking(policy, view.learning)
    to_fill: dict[Shape, list[str]] = {}
    order = fair_order(view, now) if view.usage.by_share else None
    while bucket := _next_bucket(view, order):
        job = queue.head(bucket)
        if job is not None:
            is_short = job.shape in short_shapes and job.shape.nodes == 1
            must_cool = view.cooling_s > 0 and job.shape.gpus > 0
            if not is_short or must_cool or not view.usage.allows(job):
                return  # no later job may overtake this one
            if job.shape not in to_fill:
                to_fill[job.shape] = [
                    node_id
                    for node_id in _nodes_to_fill(view, job.shape, providers)
                    if not view.advance.keeps_from_prefetching(
                        node_id, now, policy.reservation_notice_s
                    )
                ]
            node_id = _node_with_room(view, job.shape, to_fill[job.shape])
            if node_id is None:
                return
            yield job, node_id
            if order:
                order.charge_for(view, job)
        queue.rerank(bucket, ranking, now)


def _next_bucket(view: View, order: FairOrder | None) -> Bucket | None:
    """The first bucket, by turns if these are given; None if there is none. Prompts
    take no place on a node, so they may be overtaken.
    """
    if order is None:
        return _first_bucket(view, NO_SHARES)
    while (line := order.next()) is not None:
        bucket = _first_bucket(view, line)
        if bucket is not None:
            return bucket
        order.drop()
    return None


def _first_bucket(view: View, line: ShareKey) -> Bucket | None:
    ranked = view.queue.lines.get(line, ())
    return next((bucket for _, bucket in ranked if not bucket[1].model), None)


def _nodes_to_fill(view: View, shape: Shape, providers: Set[str]) -> list[str]:
    """The nodes that are to get prefetched attempts of this shape."""
    found: list[str] = []
    for node_id, site in view.prefetch_sites.by_node(shape).items():
        node = view.nodes[node_id]
        if provider_for(node, shape) in providers and may_prefetch(node, shape):
            limit = _limit(view, shape, site)
            if limit - len(site.waiting) >= limit * _REFILLED_PART:
                found.append(node_id)
    return found


def _node_with_room(view: View, shape: Shape, node_ids: Iterable[str]) -> str | None:
    """Which of these nodes can take the most further prefetched attempts of the
    shape.
    """
    sites = view.prefetch_sites.by_node(shape)
    best = None
    most = 0
    for node_id in node_ids:
        site = sites[node_id]
        room = _limit(view, shape, site) - len(site.waiting)
        if room > most:
            best = node_id
            most = room
    return best


def may_prefetch(node: Node, shape: Shape) -> bool:
    """True if a prefetched attempt may take over any place on the node.

    The node chooses the place, so none of its GPUs may be in quarantine.
    """
    if not node.online or not may_use(node, shape):
        return False
    if not shape.gpus or shape.quarantined:
        return True
    return not any(device.quarantine for device in node.devices.values())


def _limit(view: View, shape: Shape, site: PrefetchSite) -> int:
    """How many of the shape may wait at a site."""
    seconds = view.prefetch_sites.mean_duration_s(shape) or 0.0
    ends_during_turnaround = len(site.running) * _TURNAROUND_S / max(seconds, 1e-4)
    return min(_MOST_PER_NODE, math.ceil(2 * ends_during_turnaround))
