"""Preemption: chooses running jobs that make room for waiting ones. Only jobs that
their owner marked preemptible are chosen.

A job of priority 5 may displace any preemptible job of less priority; where shares
count, only one of its own line. Under `gittins`,
a job may also displace jobs of lower effective priority, or jobs that together gain
less per second than it does. Three rules keep jobs from displacing each other in turns:
the gain must be large, a job first runs long enough that the cost of a restart is small
in comparison, and a job that was displaced often is left alone. The freed places are
promised to the job they were freed for, so no other job takes them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuyard.domain.shape import Placement, Shape
from gpuyard.scheduler.actions import Preempt
from gpuyard.scheduler.fitting import SLACK, fit, may_use, share_of, suitable_devices
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.nodes import Node
from gpuyard.scheduler.policy import Policy, QueueOrder
from gpuyard.scheduler.ranking import AGED, Ranking
from gpuyard.scheduler.reservation import Reservations
from gpuyard.scheduler.victims import Victim
from gpuyard.scheduler.view import View

URGENT = 5
TRIED = 16
"""After so many waiting jobs that find no place, the rest wait for the next decision.
"""


@dataclass(frozen=True, slots=True)
class _Place:
    """A share on a node, and the victims that must leave for it. `loss`: what these
    would gain per second.
    """

    loss: float
    share: Placement
    victims: tuple[Victim, ...]

    @property
    def cost(self) -> tuple[float, int, str]:
        """The sort key: the least is best."""
        return self.loss, len(self.victims), self.share.node_id


@dataclass(frozen=True, slots=True)
class _Contender:
    """A waiting job, and what decides whom it may displace. `gain`: what it gains per
    second.
    """

    job: LiveJob
    effective_priority: int
    gain: float

    def overrides(self, victim: Victim) -> bool:
        """True if the job is urgent and the victim is not."""
        return self.job.priority == URGENT and victim.job.priority < URGENT

    def outranks(self, victim: Victim) -> bool:
        """True if ranks let the job displace the victim. At equal priority below
        `AGED` they do, and the losses decide.
        """
        if self.effective_priority != victim.effective_priority:
            return self.effective_priority > victim.effective_priority
        return self.effective_priority < AGED or self.job.id < victim.job.id

    def must_outweigh(self, victim: Victim) -> bool:
        """True if the victim's loss counts: both have equal priority below `AGED`."""
        if self.overrides(victim) or self.effective_priority >= AGED:
            return False
        return self.effective_priority == victim.effective_priority

    def loss(self, victim: Victim) -> float:
        """The victim's loss as far as it counts."""
        return victim.loss if self.must_outweigh(victim) else 0.0


class Preemption:
    """The preemptions of one decision."""

    def __init__(
        self, view: View, now: float, policy: Policy, ranking: Ranking
    ) -> None:
        self._view = view
        self._now = now
        self._policy = policy
        self._ranking = ranking
        self._gittins = policy.order is QueueOrder.GITTINS
        self._victims = view.victims
        self._kept = Reservations(view, now, policy)

    def plan(self) -> list[Preempt]:
        """The preemptions; they are tentative in the view at once."""
        actions: list[Preempt] = []
        failed = 0
        for job in self._waiting():
            places = self._places(job)
            if places is None:
                failed += 1
                if failed >= TRIED:
                    break
                continue
            shares = tuple(place.share for place in places)
            for place in places:
                for victim in place.victims:
                    action = Preempt(victim.job.id, victim.attempt.id, job.id)
                    self._view.apply_preemption(action, shares)
                    actions.append(action)
        return actions

    def _waiting(self) -> Iterator[LiveJob]:
        """The jobs that may displace others, in order."""
        if not self._victims:
            return
        for job in self._heads():
            may_displace = self._gittins or job.priority == URGENT
            is_promised = job.id in self._view.promises
            if may_displace and not is_promised and self._view.usage.allows(job):
                yield job
            if self._policy.order is QueueOrder.FCFS or not self._victims:
                return

    def _heads(self) -> Iterator[LiveJob]:
        """The heads of all buckets in order; where shares count, only those of the
        highest priorities in each line, because others displace nothing.
        """
        queue = self._view.queue
        for ranked in queue.lines.values():
            for rank, bucket in ranked:
                if self._view.usage.by_share and -rank[0] < URGENT:
                    break
                head = queue.head(bucket)
                if head is not None:
                    yield head

    def _places(self, job: LiveJob) -> list[_Place] | None:
        """One place for each node that the job needs; None if there are not enough, or
        if the job gains less than the victims lose.
        """
        contender = _Contender(
            job,
            self._ranking.effective_priority(job, self._now),
            self._ranking.gain_per_gpu(job, job.service.served_s) * job.width,
        )
        found: list[_Place] = []
        for node_id in self._victims.nodes():
            place = self._place(self._view.nodes[node_id], contender)
            if place is not None:
                found.append(place)
        if job.shape.nodes > 1:
            for node in self._view.nodes.values():
                kept = self._kept.kept_from(job).get(node.id, ())
                place = _free_place(node, job.shape, kept)
                if place is not None:
                    found.append(place)
        # At most one place on each node: the cheapest.
        cheapest: dict[str, _Place] = {}
        for place in sorted(found, key=lambda place: place.cost):
            cheapest.setdefault(place.share.node_id, place)
        chosen = list(cheapest.values())[: job.shape.nodes]
        if len(chosen) < job.shape.nodes or not _gains(contender, chosen):
            return None
        return chosen

    def _place(self, node: Node, contender: _Contender) -> _Place | None:
        """The place on `node` that displaces the least."""
        shape = contender.job.shape
        if not node.online or not may_use(node, shape):
            return None
        if fit(node.whole, shape) is None:
            return None
        kept = self._kept.kept_from(contender.job).get(node.id, ())
        promised = [*self._promised_on(node), *kept]
        victims = self._choose_victims(node, contender, promised)
        if victims is None:
            return None
        leaving = {victim.attempt.id for victim in victims}
        staying = [
            share for holder, share in node.bookings.items() if holder not in leaving
        ]
        devices = fit(node.space([*staying, *promised]), shape)
        if devices is None:
            return None
        loss = sum(contender.loss(victim) for victim in victims)
        return _Place(loss, share_of(node, devices, shape), tuple(victims))

    def _promised_on(self, node: Node) -> list[Placement]:
        return [
            share
            for promise in self._view.promises.values()
            for share in promise.placements
            if share.node_id == node.id
        ]

    def _choose_victims(
        self, node: Node, contender: _Contender, promised: list[Placement]
    ) -> list[Victim] | None:
        """Enough victims on `node` for a share, those with the least loss first; None
        if there are not enough.
        """
        missing = _Missing(node, contender.job.shape, promised)
        chosen: list[Victim] = []
        loss = 0.0
        for victim in self._victims.on(node.id):
            if missing.is_nothing():
                break
            if not self._may_displace(contender, victim):
                continue
            loss += contender.loss(victim)
            if loss > contender.gain:
                return None
            missing.subtract(node.bookings[victim.attempt.id])
            chosen.append(victim)
        if not missing.is_nothing():
            return None
        # Later victims may make earlier ones unnecessary.
        for victim in reversed(chosen[:]):
            share = node.bookings[victim.attempt.id]
            missing.add(share)
            if missing.is_nothing():
                chosen.remove(victim)
            else:
                missing.subtract(share)
        return chosen

    def _may_displace(self, contender: _Contender, victim: Victim) -> bool:
        # Priorities count only within a line.
        if contender.job.party.line != victim.job.party.line:
            return False
        if contender.overrides(victim):
            return True
        if not self._gittins or victim.displaceable_at > self._now:
            return False
        return contender.outranks(victim)


class _Missing:
    """What a share of a shape still needs on a node: GPUs, cores and gigabytes."""

    def __init__(self, node: Node, shape: Shape, promised: list[Placement]) -> None:
        space = node.space([*node.bookings.values(), *promised])
        free_for_others = node.space(promised).devices
        self._suitable = {
            device.uuid for device in suitable_devices(free_for_others, shape)
        }
        self._gpus = shape.gpus - len(suitable_devices(space.devices, shape))
        self._cpus = shape.cpus - space.cpus
        self._memory_gb = shape.memory_gb - space.memory_gb

    def is_nothing(self) -> bool:
        """True if the share fits."""
        return max(self._gpus, self._cpus, self._memory_gb) <= SLACK

    def subtract(self, share: Placement) -> None:
        """`share` is freed."""
        self._gpus -= len(self._suitable.intersection(share.gpu_uuids))
        self._cpus -= share.cpus
        self._memory_gb -= share.memory_gb

    def add(self, share: Placement) -> None:
        """`share` is not freed after all."""
        self._gpus += len(self._suitable.intersection(share.gpu_uuids))
        self._cpus += share.cpus
        self._memory_gb += share.memory_gb


def _gains(contender: _Contender, places: list[_Place]) -> bool:
    """True if no loss counts, or if the job gains more than all victims lose."""
    # A victim on several nodes is lost once.
    victims = {
        victim.attempt.id: victim for place in places for victim in place.victims
    }
    losses = [
        victim.loss for victim in victims.values() if contender.must_outweigh(victim)
    ]
    return not losses or sum(losses) < contender.gain


def _free_place(node: Node, shape: Shape, kept: Sequence[Placement]) -> _Place | None:
    """A share that fits on the node as it is, without what is `kept` for others."""
    if not node.online or not may_use(node, shape):
        return None
    space = node.free
    for share in kept:
        space = space.minus(share)
    devices = fit(space, shape)
    if devices is None:
        return None
    return _Place(0.0, share_of(node, devices, shape), ())
