"""Preemption: which running jobs give way to one that waits. Only jobs that their owner calls preemptible ever do.

A job of priority 5 takes the place of any preemptible one of less priority. Where the policy learns, a job of higher
effective priority, or one that is worth more than all it displaces together, does so too. Three things keep this from
going to and fro: the gain must be large, a job has run so long before it is displaced that what a restart costs is a
small part of that, and one that was displaced often is left alone. What is freed is promised to the job it was freed
for, and nobody else can take it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuyard.domain.shape import Placement, Shape
from gpuyard.scheduler.fitting import SLACK, fit, may_use, share_of, suitable
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.nodes import Node
from gpuyard.scheduler.policy import Order, Policy
from gpuyard.scheduler.ranking import AGED, Ranking
from gpuyard.scheduler.victims import Victim
from gpuyard.scheduler.view import Preempt, View

URGENT = 5
TRIED = 16
"""How many waiting jobs in a row may fail to find a place before the rest are left for another time."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A share on a node and whom it displaces there, at what loss of worth per second."""

    loss: float
    count: int
    share: Placement
    victims: tuple[Victim, ...]


class Preemption:
    """The preemptions of one decision."""

    def __init__(self, view: View, now: float, policy: Policy, ranking: Ranking) -> None:
        self._view, self._now, self._policy, self._ranking = view, now, policy, ranking
        self._gittins = policy.order is Order.GITTINS
        self._victims = view.victims

    def plan(self) -> list[Preempt]:
        """Whom to preempt for whom; it stands in the view at once."""
        found: list[Preempt] = []
        failed = 0
        for job in self._waiting():
            places = self._places(job)
            if places is None:
                failed += 1
                if failed >= TRIED:
                    break
                continue
            shares = tuple(place.share for place in places)
            for victim in (victim for place in places for victim in place.victims):
                action = Preempt(victim.job.id, victim.attempt.id, job.id)
                self._view.preempt(action, shares)
                found.append(action)
        return found

    def _waiting(self) -> Iterator[LiveJob]:
        """Who may displace others, in order."""
        queue = self._view.queue
        for _, lane in queue.line:
            if not self._victims:
                return
            job = queue.head(lane)
            if job is not None and job.id not in self._view.promises and (self._gittins or job.priority == URGENT):
                yield job
            if self._policy.order is Order.FCFS:
                return

    def _places(self, job: LiveJob) -> list[_Place] | None:
        """Where the job would go, one place for each of its nodes; None when nowhere at a loss it is worth."""
        gain = self._ranking.worth(job, job.served_s) * job.width
        nodes = (self._view.nodes[node_id] for node_id in self._victims.nodes())
        found = [place for node in nodes if (place := self._place(node, job, gain)) is not None]
        if job.shape.nodes > 1:
            found += [place for node in self._view.nodes.values() if (place := _free_place(node, job.shape))]
        found.sort(key=lambda place: (place.loss, place.count, place.share.node_id))
        # Only one place counts on each node; the cheaper one comes first.
        chosen = list({place.share.node_id: place for place in reversed(found)}.values())[::-1][: job.shape.nodes]
        victims = {victim.attempt.id: victim for place in chosen for victim in place.victims}
        if len(chosen) < job.shape.nodes or not self._worth_it(job, gain, victims.values()):
            return None
        return chosen

    def _place(self, node: Node, job: LiveJob, gain: float) -> _Place | None:
        """The place on `node` that displaces the least."""
        shape = job.shape
        if not node.online or not may_use(node, shape) or fit(node.whole, shape) is None:
            return None
        promised = self._promised_on(node)
        chosen = self._enough(node, job, gain, promised)
        if chosen is None:
            return None
        leaving = {victim.attempt.id for victim in chosen}
        kept = [share for holder, share in node.bookings.items() if holder not in leaving]
        devices = fit(node.space([*kept, *promised]), shape)
        if devices is None:
            return None
        loss = sum(victim.value for victim in chosen if self._loses(job, victim))
        return _Place(loss, len(chosen), share_of(node, devices, shape), tuple(chosen))

    def _promised_on(self, node: Node) -> list[Placement]:
        return [share for promise in self._view.promises.values() for share in promise.placements
                if share.node_id == node.id]  # fmt: skip

    def _enough(self, node: Node, job: LiveJob, gain: float, promised: list[Placement]) -> list[Victim] | None:
        """Enough victims on `node` for a share, the least first and none in vain; None when there are not enough."""
        shape = job.shape
        usable = suitable(node.whole.devices, shape)
        able = None if len(usable) == len(node.whole.devices) else {device.uuid for device in usable}
        space = node.space([*node.bookings.values(), *promised])
        lack = [shape.gpus - len(suitable(space.devices, shape)), shape.cpus - space.cpus,
                shape.memory_gb - space.memory_gb]  # fmt: skip
        chosen: list[Victim] = []
        loss = 0.0
        for victim in self._victims.on(node.id):
            if max(lack) <= SLACK:
                break
            if not self._admits(job, victim):
                continue
            loss += victim.value if self._loses(job, victim) else 0.0
            if loss > gain:
                return None
            share = node.bookings[victim.attempt.id]
            lack = [need - got for need, got in zip(lack, _amounts(share, able), strict=True)]
            chosen.append(victim)
        if max(lack) > SLACK:
            return None
        for victim in reversed(chosen[:]):
            back = [
                need + got for need, got in zip(lack, _amounts(node.bookings[victim.attempt.id], able), strict=True)
            ]
            if max(back) <= SLACK:
                lack = back
                chosen.remove(victim)
        return chosen

    def _admits(self, job: LiveJob, victim: Victim) -> bool:
        """May `job` displace `victim` at all?"""
        if job.priority == URGENT and victim.job.priority < URGENT:
            return True
        if not self._gittins or victim.settled_at > self._now:
            return False
        mine = self._ranking.effective_priority(job, self._now)
        return mine > victim.effective or (mine == victim.effective and (mine < AGED or job.id < victim.job.id))

    def _loses(self, job: LiveJob, victim: Victim) -> bool:
        """True when the victim's worth counts against the job's: they are of one priority and neither is aged."""
        return victim.effective == self._ranking.effective_priority(job, self._now) < AGED and not (
            job.priority == URGENT and victim.job.priority < URGENT
        )

    def _worth_it(self, job: LiveJob, gain: float, victims: Iterable[Victim]) -> bool:
        lost = [victim.value for victim in victims if self._loses(job, victim)]
        return not lost or sum(lost) < gain


def _amounts(share: Placement, able: set[str] | None) -> tuple[int, float, float]:
    gpus = len(share.gpu_uuids) if able is None else len(able.intersection(share.gpu_uuids))
    return gpus, share.cpus, share.memory_gb


def _free_place(node: Node, shape: Shape) -> _Place | None:
    """A share that fits on the node as it is."""
    if not node.online or not may_use(node, shape):
        return None
    devices = fit(node.free, shape)
    return None if devices is None else _Place(0.0, 0, share_of(node, devices, shape), ())
