"""Taking back what a reservation has lent: while it holds, jobs of others on its GPUs
are preempted, as far as jobs of its holder need the place.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from gpuyard.domain.shape import Placement, Shape
from gpuyard.scheduler.actions import Preempt
from gpuyard.scheduler.advance import AdvanceReservation
from gpuyard.scheduler.fitting import fit, may_use, share_of
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.nodes import Node, Space
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.reservation import Reservations
from gpuyard.scheduler.reserved_pass import (
    TRIED,
    heads_of_holder,
    may_start,
    only_gpus_of,
)
from gpuyard.scheduler.victims import Victim
from gpuyard.scheduler.view import View

MOST_AT_ONCE = 100
"""So many jobs leave in one decision; the next decision follows at once. With thousands
of GPUs, one decision would else keep all other work waiting.
"""


def take_back(view: View, now: float, policy: Policy) -> list[Preempt]:
    """Preempt jobs of others on what is reserved, as far as jobs of its holder need the
    place; the preemptions are tentative in the view at once. If there are
    `MOST_AT_ONCE` or more, others may have to follow.
    """
    actions: list[Preempt] = []
    if not view.victims:
        return actions
    reservations = Reservations(view, now, policy)
    for booked in view.advance.current(now):
        lent = _Lent(view, booked)
        failed = 0
        for job in _waiting_for(view, booked) if lent.parts else ():
            if failed >= TRIED or len(actions) >= MOST_AT_ONCE:
                break
            places = lent.places(job, reservations.kept_from(job))
            if places is None:
                failed += 1
                continue
            for victim in _each_once(places):
                action = Preempt(victim.job.id, victim.attempt.id, job.id)
                view.apply_preemption(action, tuple(one.share for one in places))
                actions.append(action)
            lent.note(job.id, places)
    return actions


def _waiting_for(view: View, booked: AdvanceReservation) -> Iterator[LiveJob]:
    """The first jobs of the holder that wait: no more than could run there at once."""
    most = max(1, len(booked.uuids()))
    for _, bucket in heads_of_holder(view, booked):
        for job in view.queue.first_jobs(bucket, most):
            if may_start(view, job, booked):
                yield job


@dataclass(frozen=True, slots=True)
class _FreedPlace:
    """Where a share can be once these victims have left."""

    share: Placement
    victims: tuple[Victim, ...]


def _each_once(places: Sequence[_FreedPlace]) -> list[Victim]:
    """One that is on several nodes is preempted once."""
    found = {one.attempt.id: one for place in places for one in place.victims}
    return list(found.values())


@dataclass(frozen=True, slots=True)
class _Part:
    """A reservation's part of one node. `victims`: the jobs of others there, those to
    preempt first come first. `emptied`: the room once all of them have left.
    `promised`: what is kept for those for whom others leave already. `frees`: how many
    GPUs are free after any 0, 1, 2, … victims, at the most.
    """

    node: Node
    share: Placement
    victims: tuple[Victim, ...]
    promised: tuple[Placement, ...]
    emptied: Space
    frees: tuple[int, ...]

    def least_victims(self, shape: Shape) -> int:
        """So many victims must leave for a share, at the least."""
        enough = (count for count, gpus in enumerate(self.frees) if gpus >= shape.gpus)
        return next(enough, len(self.victims))

    def place(self, shape: Shape, kept: Sequence[Placement]) -> _FreedPlace | None:
        """The place of a share once as few victims as possible have left."""
        if fit(self.emptied, shape) is None:
            return None
        if not self.node.online or not may_use(self.node, shape):
            return None
        leaving = list(self.victims)
        devices = fit(self._room(leaving, kept), shape)
        if devices is None:
            return None
        # Those that come last are spared first.
        for victim in self.victims[::-1]:
            rest = [one for one in leaving if one is not victim]
            found = fit(self._room(rest, kept), shape)
            if found is not None:
                leaving = rest
                devices = found
        return _FreedPlace(share_of(self.node, devices, shape), tuple(leaving))

    def _room(self, leaving: Sequence[Victim], kept: Sequence[Placement]) -> Space:
        return _room(self.node, self.share, leaving, [*self.promised, *kept])


class _Lent:
    """What of a reservation is lent, by node. `parts` are those with victims."""

    def __init__(self, view: View, booked: AdvanceReservation) -> None:
        self._view = view
        self._booked = booked
        self._promised: dict[str, list[Placement]] = {}
        for promise in view.promises.values():
            self._promise(promise.placements)
        self.parts: dict[str, _Part] = {}
        self._others: dict[str, _Part] = {}
        for node_id in sorted(booked.shares):
            self._renew(node_id)

    def note(self, job_id: str, places: Sequence[_FreedPlace]) -> None:
        """Victims leave now, and their places are kept for this job."""
        self._promise(self._view.promises[job_id].placements)
        changed = {place.share.node_id for place in places}
        for victim in _each_once(places):
            changed.update(share.node_id for share in victim.attempt.placements)
        for node_id in changed & self._booked.shares.keys():
            self._renew(node_id)

    def places(
        self, job: LiveJob, kept: dict[str, list[Placement]]
    ) -> list[_FreedPlace] | None:
        """Where the job can start once some victims have left; None if nowhere, or if
        none has to. Nodes with the fewest victims come first.
        """
        shape = job.shape
        found = self._with_victims(shape, kept)
        if not found:
            return None
        without = self._without_victims(shape, kept)
        chosen = [*without, *found][: shape.nodes]
        if len(chosen) < shape.nodes or not _each_once(chosen):
            return None
        return chosen

    def _with_victims(
        self, shape: Shape, kept: dict[str, list[Placement]]
    ) -> list[_FreedPlace]:
        """The best places on lent parts, one for each node of the job."""
        possible = [
            (part.least_victims(shape), node_id)
            for node_id, part in self.parts.items()
            if fit(part.emptied, shape) is not None
        ]
        found: list[_FreedPlace] = []
        for least, node_id in sorted(possible):
            if len(found) >= shape.nodes and len(found[-1].victims) <= least:
                break
            place = self.parts[node_id].place(shape, kept.get(node_id, ()))
            if place is not None:
                found.append(place)
                found.sort(key=lambda one: (len(one.victims), one.share.node_id))
                del found[shape.nodes :]
        return found

    def _without_victims(
        self, shape: Shape, kept: dict[str, list[Placement]]
    ) -> list[_FreedPlace]:
        """Places on the parts that nobody else uses, one for each node of the job."""
        found: list[_FreedPlace] = []
        for node_id, part in self._others.items():
            if len(found) >= shape.nodes:
                break
            place = part.place(shape, kept.get(node_id, ()))
            if place is not None:
                found.append(place)
        return found

    def _renew(self, node_id: str) -> None:
        part = self._part(self._view.nodes[node_id], self._booked.shares[node_id])
        for parts in (self.parts, self._others):
            parts.pop(node_id, None)
        if part.victims:
            self.parts[node_id] = part
        else:
            self._others[node_id] = part

    def _promise(self, placements: Sequence[Placement]) -> None:
        for share in placements:
            self._promised.setdefault(share.node_id, []).append(share)

    def _part(self, node: Node, share: Placement) -> _Part:
        victims = self._victims(node, share)
        promised = tuple(self._promised.get(node.id, ()))
        free = _room(node, share, (), promised)
        # Those with most GPUs first: no other so many free more.
        gpus = sorted((len(_gpus_of(one, node)) for one in victims), reverse=True)
        return _Part(
            node,
            share,
            victims,
            promised,
            _room(node, share, victims, promised),
            tuple(accumulate(gpus, initial=len(free.devices))),
        )

    def _victims(self, node: Node, share: Placement) -> tuple[Victim, ...]:
        reserved = set(share.gpu_uuids)
        return tuple(
            victim
            for victim in self._view.victims.on(node.id)
            if not self._booked.is_held_by(victim.job)
            and (
                self._booked.gpus is None
                or not reserved.isdisjoint(_gpus_of(victim, node))
            )
        )


def _gpus_of(victim: Victim, node: Node) -> tuple[str, ...]:
    return node.bookings[victim.attempt.id].gpu_uuids


def _room(
    node: Node,
    share: Placement,
    leaving: Sequence[Victim],
    taken: Sequence[Placement],
) -> Space:
    """The room of this share of the node once these have left."""
    gone = {victim.attempt.id for victim in leaving}
    staying = [one for holder, one in node.bookings.items() if holder not in gone]
    return only_gpus_of(share, node.space([*staying, *taken]))
