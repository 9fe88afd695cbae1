"""Behind which jobs of this instance a job waits.

It looks at all nodes, so it is for questions and not for decisions.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from operator import attrgetter

from gpuyard.domain.offers import Offer
from gpuyard.domain.shape import Shape
from gpuyard.scheduler.explanation import MOST_BEHIND, Why
from gpuyard.scheduler.fitting import SLACK, suitable_devices
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.nodes import Node
from gpuyard.scheduler.placement import SpaceOf, candidates
from gpuyard.scheduler.view import View

_WHOLE: SpaceOf = attrgetter("whole")


def behind(answer: Why, jobs: Collection[str]) -> Why:
    """The answer, with the ids of the jobs behind which the job waits."""
    oldest = sorted(jobs)[:MOST_BEHIND]
    return replace(answer, behind=tuple(oldest), behind_total=len(jobs))


def holding(view: View, shape: Shape) -> set[str]:
    """The jobs that hold what a share of the shape could use: its GPUs, or cores or
    memory of a node that has too little of these.
    """
    return {
        job_id
        for candidate in candidates(view, shape, _WHOLE)
        for holder in _holders(candidate.node, shape)
        if (job_id := _job_of(view, holder))
    }


def _holders(node: Node, shape: Shape) -> Iterable[str]:
    """Who holds what the shape could use on a node."""
    suitable = {device.uuid for device in suitable_devices(node.whole.devices, shape)}
    lacks_cpus = node.free.cpus + SLACK < shape.cpus
    lacks_memory = node.free.memory_gb + SLACK < shape.memory_gb
    for holder, share in node.bookings.items():
        if lacks_cpus or lacks_memory or not suitable.isdisjoint(share.gpu_uuids):
            yield holder


def waiting_before(view: View, job: LiveJob, offers: Iterable[Offer]) -> set[str]:
    """The jobs that fill the external queues of these offers: those of its shape that
    wait there.
    """
    queues = {offer.provider for offer in offers}
    found: set[str] = set()
    for holder, offer_id in view.external_queues.waiting.items():
        other = view.jobs.get(_job_of(view, holder))
        is_there = offer_id.partition("/")[0] in queues
        if is_there and other is not None and other.shape == job.shape:
            found.add(other.id)
    return found


def _job_of(view: View, holder: str) -> str:
    """The job of an attempt, or the job itself while its start is tentative; empty if
    it is neither.
    """
    attempt = view.attempts.get(holder)
    if attempt is not None:
        return attempt.job_id
    return holder if holder in view.jobs else ""
