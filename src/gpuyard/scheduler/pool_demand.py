"""What waits for a pool: work for which no node has room, and which a node of the pool
could run.

It looks at the heads of many buckets and at every node, so it is asked every second or
so and not in each decision.
"""

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from operator import attrgetter

from gpuyard.domain.shape import Shape
from gpuyard.scheduler.external_queues import need_of
from gpuyard.scheduler.fitting import SLACK, may_use, suitable_devices
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.nodes import Node
from gpuyard.scheduler.placement import place, would_fit
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.pools import PoolPlace, WaitingWork
from gpuyard.scheduler.reservation import Reservations
from gpuyard.scheduler.share_texts import quota_in_words
from gpuyard.scheduler.view import View

MOST_BUCKETS = 64
"""So many kinds of waiting jobs are looked at. They are more than a pool can serve at
once.
"""
_WHOLE = attrgetter("whole")


@dataclass(frozen=True, slots=True)
class Wish:
    """`count` equal pieces of work that no job in the queue stands for: models that
    requests wait for, and items of batches. Each takes a place of this shape for about
    `run_s`.

    `wait_s`: on the places that they have already, the last of them would be served in
    so many seconds; None if they have none.
    """

    shape: Shape
    count: int
    run_s: float
    wait_s: float | None = None


def waiting_for(
    view: View,
    like: Node,
    now: float,
    policy: Policy,
    served: Container[Shape] = frozenset[Shape](),
    wishes: Sequence[Wish] = (),
) -> dict[Shape, WaitingWork]:
    """The work that waits for more nodes like this one, which is empty and need not
    exist; by its shape. Others see to what is `served`.
    """
    found = _wished(view, like, served, wishes)
    # A wish knows more of the work than a worker that waits for a place.
    wished = frozenset(found)
    for job, count in view.queue.kinds():
        if job.shape in served or job.shape in wished:
            continue
        per_node = shares_on(like, job.shape)
        if not per_node or place(view, job.shape) or quota_in_words(view, job):
            continue
        if before := found.get(job.shape):
            count += before.jobs
        run_s = need_of(job, view.learning, {}).run_s
        wait_s = _wait_s(view, job, count, run_s, now, policy)
        found[job.shape] = WaitingWork(count, per_node, job.shape.nodes, run_s, wait_s)
        if len(found) >= MOST_BUCKETS:
            break
    return found


def _wished(
    view: View, like: Node, served: Container[Shape], wishes: Sequence[Wish]
) -> dict[Shape, WaitingWork]:
    """What these wishes would use such nodes for, by shape."""
    found: dict[Shape, WaitingWork] = {}
    for wish in wishes:
        shape = wish.shape
        per_node = shares_on(like, shape)
        if shape in served or not per_node or place(view, shape):
            continue
        before = found.get(shape)
        count = wish.count + (before.jobs if before else 0)
        wait_s = _longer(before, wish) if before else wish.wait_s
        found[shape] = WaitingWork(count, per_node, shape.nodes, wish.run_s, wait_s)
    return found


def _longer(before: WaitingWork, wish: Wish) -> float | None:
    """The longer wait of two kinds of work; None if that of one is not known."""
    if before.wait_s is None or wish.wait_s is None:
        return None
    return max(before.wait_s, wish.wait_s)


def pools_for(view: View, shape: Shape) -> dict[str, PoolPlace]:
    """The pools whose nodes could run the shape, by name. One whose size is not known
    may be able to run anything that needs no folder of the server's machine.
    """
    return {
        name: pool
        for name, pool in view.pools.items()
        if shape.nodes <= pool.most and _could_run(pool.like, shape)
    }


def _could_run(like: Node | None, shape: Shape) -> bool:
    return shape.portable if like is None else shares_on(like, shape) > 0


def shares_on(node: Node, shape: Shape) -> int:
    """How many shares of the shape fit on the node when it is empty."""
    if not node.online or not may_use(node, shape):
        return 0
    space = node.whole
    limits = [math.inf]
    if shape.gpus:
        limits.append(len(suitable_devices(space.devices, shape)) // shape.gpus)
    if shape.cpus:
        limits.append((space.cpus + SLACK) // shape.cpus)
    if shape.memory_gb:
        limits.append((space.memory_gb + SLACK) // shape.memory_gb)
    most = min(limits)
    return 1 if most == math.inf else int(most)


def _wait_s(
    view: View, job: LiveJob, count: int, run_s: float, now: float, policy: Policy
) -> float | None:
    """In how many seconds the last of `count` such jobs starts on the nodes that there
    are, as far as time limits tell; None if they do not.
    """
    if not would_fit(view, job.shape, _WHOLE):
        return None
    planned = Reservations(view, now, policy).reserve(job)
    if planned is None or planned.at == math.inf:
        return None
    at_once = sum(shares_on(node, job.shape) for node in view.nodes.values())
    turns = max(math.ceil(count * job.shape.nodes / max(at_once, 1)) - 1, 0)
    return max(planned.at - now, 0.0) + turns * run_s
