"""Claims: short jobs sent ahead of a free place, so that a node need not wait for a commit between two of them.

A claim is no allocation: the job takes the place of one of its shape that ends there. The window of a site is as long
as the jobs that can end there while one decision travels, and a claim that waits much longer than that is taken back.
"""

import math
from collections.abc import Iterator, Set

from gpuyard.domain.shape import Shape
from gpuyard.scheduler.fitting import may_use, provider_for
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.nodes import Node
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.ranking import Ranking
from gpuyard.scheduler.view import View

# From the end of a job to the start of the next through the server: two commits and two messages, on a slow disk.
_TURNAROUND_S = 0.05
# For longer jobs the gap between two does not matter, and a wrong claim does.
_BRIEF_S = 0.25
_WINDOW = 64


def claims(view: View, now: float, policy: Policy, providers: Set[str]) -> Iterator[tuple[LiveJob, str]]:
    """Jobs to send ahead and the node of each, in the order of the line that the last decision left. Take each job out
    of the queue before the next.

    `providers`: those whose nodes can let a job wait.
    """
    brief, queue = set(view.sites.brief(_BRIEF_S)), view.queue
    if not brief or queue.unranked:
        return
    ranking = Ranking(policy, view.learning)
    while queue.line:
        _, lane = queue.line[0]
        job = queue.head(lane)
        if job is not None:
            node_id = _room(view, job.shape, providers) if job.shape in brief and job.shape.nodes == 1 else None
            if node_id is None:
                return  # nobody is sent ahead of one that stands before him
            yield job, node_id
        queue.rerank(lane, ranking, now)


def _room(view: View, shape: Shape, providers: Set[str]) -> str | None:
    """The node with the most room in its window for this shape."""
    seconds = view.sites.seconds(shape) or 0.0
    best, most = None, 0
    for node_id, site in view.sites.of(shape).items():
        node = view.nodes[node_id]
        if provider_for(node, shape) in providers and is_open(node, shape):
            room = _window(len(site.running), seconds) - len(site.ahead)
            if room > most:
                best, most = node_id, room
    return best


def is_open(node: Node, shape: Shape) -> bool:
    """True when a job sent ahead may take over a place on the node.

    Which one the node chooses, so none of its GPUs may be in quarantine.
    """
    doubtful = shape.gpus and not shape.quarantined and any(device.quarantine for device in node.devices.values())
    return node.online and may_use(node, shape) and not doubtful


def _window(slots: int, seconds: float) -> int:
    return min(_WINDOW, math.ceil(2 * slots * _TURNAROUND_S / max(seconds, 1e-4)))
