"""Why a job in the queue does not start."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import takewhile
from operator import attrgetter

from gpuyard.domain.offers import Offer
from gpuyard.domain.units import format_duration
from gpuyard.scheduler.advice import Advice, smaller_requests
from gpuyard.scheduler.explanation import Why
from gpuyard.scheduler.external_queues import ExternalQueue, may_use
from gpuyard.scheduler.fair_order import heads_in_turn
from gpuyard.scheduler.fitting import (
    allowed,
    could_hold,
    fit,
    ignoring_quarantine,
    provider_for,
    quarantine_of,
    suitable_devices,
)
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.nodes import Node
from gpuyard.scheduler.parties import ShareKey
from gpuyard.scheduler.placement import (
    SpaceOf,
    candidates,
    free_space,
    place,
    would_fit,
)
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.pool_demand import pools_for
from gpuyard.scheduler.pools import PoolPlace
from gpuyard.scheduler.queue import bucket_of
from gpuyard.scheduler.ranking import Ranking
from gpuyard.scheduler.refusal import (
    count,
    describe,
    impossible,
    reasons,
    why_unavailable,
)
from gpuyard.scheduler.reservation import PlannedStart, Reservations, may_outlast
from gpuyard.scheduler.share_texts import jobs_ahead, quota_in_words, share_in_the_way
from gpuyard.scheduler.verdicts import (
    FULL,
    node_verdicts,
    nodes_by_name,
    offer_forecasts,
    offer_verdicts,
)
from gpuyard.scheduler.view import View
from gpuyard.scheduler.why_behind import behind, holding, waiting_before
from gpuyard.scheduler.why_reserved import in_the_way, in_words, kept_for_others

MOST_NAMED = 3
"""An explanation names at most this many jobs."""
_WHOLE: SpaceOf = attrgetter("whole")
WhenItLeaves = Callable[[str], str]


class QueuedJob:
    """A job in the queue, and what keeps it there."""

    def __init__(
        self,
        view: View,
        job: LiveJob,
        now: float,
        policy: Policy,
        when_it_leaves: WhenItLeaves = lambda _: "",
    ) -> None:
        self._when_it_leaves = when_it_leaves
        self.view = view
        self.job = job
        self.now = now
        self.policy = policy
        self.ranking = Ranking(policy, view.learning)
        self.by_line = Counter[ShareKey]()
        if view.usage.by_share:
            self.by_line = jobs_ahead(view, job, now, self.ranking)
            self.ahead = self.by_line.total()
        else:
            self.ahead = (view.queue.position(job.id, self.ranking, now) or 1) - 1
        self.reservations = Reservations(view, now, policy)

    def explain(self) -> Why:
        """Why it does not start."""
        quota = quota_in_words(self.view, self.job)
        if quota:
            return self._over_quota(quota)
        answer = self._without_quota()
        share = share_in_the_way(self.view, self.job, self.now, self.by_line)
        if not share:
            return answer
        constraint = answer.constraint
        if constraint in ("priority", "capacity", "reservation"):
            constraint = "share"
        summary = f"{answer.summary} {share}"
        return replace(answer, summary=summary, constraint=constraint)

    def _over_quota(self, quota: str) -> Why:
        answer = Why(
            quota,
            "quota",
            "when jobs under this quota end is not known",
            position=self.ahead + 1,
            ahead=self.ahead,
            would_help=("wait for a job under this quota to end, or cancel one",),
        )
        month = self.view.usage.month_in_the_way(self.job)
        if month is None:
            return answer
        return replace(
            answer,
            estimate_basis="then the next month begins",
            estimate_s=month.ends_at - self.now,
            would_help=("wait for the next month, or ask for a higher quota",),
        )

    def _without_quota(self) -> Why:
        if self.job.shape.model:
            return replace(
                self._waits_for_model(), position=self.ahead + 1, ahead=self.ahead
            )
        answer = kept_for_others(self.view, self.job, self.now, self.policy)
        if answer is None:
            fits = place(self.view, self.job.shape) is not None
            answer = self._room_for_others() if fits else self._no_room()
        verdicts = (
            *node_verdicts(self.view, self.job),
            *offer_verdicts(self.view, self.job, self.now, self.policy),
        )
        return replace(
            answer, position=self.ahead + 1, ahead=self.ahead, candidates=verdicts
        )

    # --- there is room, but others come first ---

    def _room_for_others(self) -> Why:
        if not self.view.queue.is_head(self.job):
            answer = Why(
                "There is room for it, but it is not its turn:"
                f" {count(self.ahead, 'job')} before it in line.",
                "priority",
                "the jobs before it are not placed yet",
                would_help=("raise its priority",),
            )
            head = self.view.queue.head(bucket_of(self.job))
            return behind(answer, {head.id} if head else ())
        heads = self._heads_before()
        if not heads or self.reservations.backfill(self.job, heads) is not None:
            return Why("It can start now.", "starting", "there is room for it", 0.0)
        return self._reserved()

    def _reserved(self) -> Why:
        reservation = self._blocking_reservation()
        owner = reservation.job
        estimate_s, basis = self._estimate()
        rest_s = reservation.at - self.now - self.policy.end_margin_s
        help_ = ["raise its priority"]
        if rest_s == math.inf:
            help_.insert(0, "give it a timeout")
        elif rest_s > 0:
            help_.insert(0, f"give it a timeout of at most {format_duration(rest_s)}")
        answer = Why(
            f"There is room for it, but it could delay {owner.id}"
            f" ({describe(owner.shape)}), which comes first.",
            "reservation",
            basis,
            estimate_s,
            would_help=tuple(help_),
        )
        return behind(answer, {owner.id})

    def _blocking_reservation(self) -> PlannedStart:
        """The first reservation that the job may outlast, on a node where it fits."""
        end = self.reservations.latest_end(self.job.id)
        nodes = {
            candidate.node.id for candidate in candidates(self.view, self.job.shape)
        }
        return next(
            made
            for made in self.reservations.made
            if may_outlast(end, made.at) and not nodes.isdisjoint(made.spare)
        )

    # --- there is no room ---

    def _no_room(self) -> Why:
        shape = self.job.shape
        fits_empty = len(candidates(self.view, shape, _WHOLE)) >= shape.nodes
        if not fits_empty and self.view.external_queues.suitable_offers(shape):
            return self._external_queues_full()
        if not fits_empty and (silent := self._silent_queues()):
            return self._waits_for_answer(silent)
        if not fits_empty and (pools := pools_for(self.view, shape)):
            return self._waits_for_pool(pools)
        online = [node for node in self.view.nodes.values() if node.online]
        if not any(allowed(node, shape) for node in online):
            return self._no_nodes()
        if fits_empty:
            return self._in_use()
        if would_fit(self.view, ignoring_quarantine(shape), _WHOLE):
            return self._in_quarantine()
        return self._too_large()

    def _waits_for_model(self) -> Why:
        """It is a prompt, and not yet in the queue of its model."""
        model = self.job.shape.model
        offers = self.view.external_queues.suitable_offers(self.job.shape)
        if not offers:
            return Why(
                f"It waits for the model {model}, which is not in the settings.",
                "model",
                "when that changes is not known",
                would_help=(f"add [models.{model}] to gpuyard.toml",),
            )
        obstacle = self.view.external_queues.obstacle(
            offers[0], self.job.shape, self.now
        )
        reason = obstacle or f"{count(self.ahead, 'job')} before it in line"
        return Why(
            f"It waits for the model {model}: {reason}.",
            "model",
            "how long the answers before it take is not known",
        )

    def _external_queues_full(self) -> Why:
        """Only external queues can run it, and none takes another one now."""
        obstacles: list[str] = []
        full: list[Offer] = []
        for forecast in offer_forecasts(self.view, self.job, self.policy):
            offer = forecast.offer
            obstacle = self.view.external_queues.obstacle(
                offer, self.job.shape, self.now
            )
            if not obstacle:
                full.append(offer)
            obstacles.append(f"{offer.id} {obstacle or FULL}")
        answer = Why(
            f"It is held back here: {'; '.join(obstacles[:MOST_NAMED])}.",
            "engine",
            "when room comes is not known",
        )
        return behind(answer, waiting_before(self.view, self.job, full))

    def _silent_queues(self) -> list[ExternalQueue]:
        """The external queues that it may use and whose offers are not known."""
        shape = self.job.shape
        return [
            queue
            for queue in self.view.external_queues.by_name.values()
            if queue.problem and not queue.offers and may_use(queue.name, shape)
        ]

    def _waits_for_answer(self, queues: list[ExternalQueue]) -> Why:
        """Nothing here can hold it, and what an external queue has is not known."""
        said = "; ".join(f"{queue.name} {queue.problem}" for queue in queues)
        return Why(
            f"No node online can hold it, and {said}.",
            "engine",
            "when that changes is not known",
        )

    def _waits_for_pool(self, pools: Mapping[str, PoolPlace]) -> Why:
        """Nothing here can hold it, and a node of a pool could."""
        said = "; ".join(f"{name}: {pool.why}" for name, pool in pools.items())
        return Why(
            f"It waits for a node of a pool ({said}).",
            "pool",
            "when a node comes is not known",
        )

    def _no_nodes(self) -> Why:
        if self.view.nodes:
            summary = "No node that it may use is online."
        else:
            summary = "No node is known yet."
        return Why(
            summary,
            "no_nodes",
            "when a node comes is not known",
            would_help=tuple(self._repairs()),
        )

    def _too_large(self) -> Why:
        """No node that is online could hold it, even if it were empty."""
        shape = self.job.shape
        advice = smaller_requests(self.view, shape, _WHOLE)
        never = impossible(self.view, shape)
        help_ = [*self._repairs(), *(item.text for item in advice)]
        if never is None:
            constraint = "offline"
        else:
            constraint = advice[0].constraint if advice else "impossible"
            help_.append(never.largest)
        return Why(
            f"The nodes online cannot hold it: it needs {describe(shape)}.",
            constraint,
            "nothing online can hold it",
            would_help=tuple(help_),
        )

    def _in_quarantine(self) -> Why:
        """It would fit if nothing were in quarantine."""
        shape = self.job.shape
        nodes: list[str] = []
        for node in nodes_by_name(self.view):
            refusals = reasons(node, shape, node.whole)
            could_run = node.online and allowed(node, shape) and could_hold(node, shape)
            if could_run and refusals:
                nodes.append(f"{node.title} {'; '.join(refusals)}")
        advice = smaller_requests(self.view, shape, _WHOLE)
        return Why(
            f"What could run it is in quarantine: {'; '.join(nodes[:MOST_NAMED])}.",
            "quarantined",
            "it is tried again when a quarantine ends",
            would_help=(*self._repairs(), *(item.text for item in advice)),
        )

    def _in_use(self) -> Why:
        """It would fit if less were booked."""
        advice = smaller_requests(self.view, self.job.shape, free_space)
        before = ""
        if self.ahead and not self.by_line:  # else the share tells
            before = f"; {count(self.ahead, 'job')} before it in line"
        kept_out_by = in_the_way(self.view, self.job, self.now, self.policy)
        kept = f" Also, {in_words(kept_out_by)}." if kept_out_by else ""
        for name, pool in pools_for(self.view, self.job.shape).items():
            kept += f" A node of the pool {name} could run it, too: {pool.why}."
        estimate_s, basis = self._estimate()
        help_ = (
            *self._jobs_to_wait_for(),
            *self._repairs(),
            *(item.text for item in advice),
        )
        answer = Why(
            f"What it needs is in use: {describe(self.job.shape)}{before}.{kept}",
            _narrow_choice(advice) or "capacity",
            basis,
            estimate_s,
            would_help=help_,
        )
        return behind(answer, holding(self.view, self.job.shape))

    # --- when it can start ---

    def _heads_before(self) -> list[LiveJob]:
        if self.view.usage.by_share:
            return list(self._heads_in_turn())
        heads = self.view.queue.heads(self.ranking, self.now)
        return list(takewhile(lambda head: head is not self.job, heads))

    def _heads_in_turn(self) -> Iterator[LiveJob]:
        """The first jobs of the lines before its own, and of its own."""
        for head in heads_in_turn(self.view, self.now):
            if head is self.job:
                return
            yield head
            if head.party.line == self.job.party.line:
                return

    def _reservation(self) -> PlannedStart | None:
        """Its own reservation, after those of the heads before it."""
        reservations = Reservations(self.view, self.now, self.policy)
        for head in self._heads_before()[: self.policy.reserved_heads]:
            reservations.reserve(head)
        return reservations.reserve(self.job)

    def _estimate(self) -> tuple[float | None, str]:
        """In how many seconds it starts at the latest, None if unknown; and why."""
        unknown = "and how long they will hold them is not known"
        if not self.view.queue.is_head(self.job):
            return None, f"jobs with the same needs stand before it, {unknown}"
        reservation = self._reservation()
        if reservation is None:
            return None, f"jobs before it need the same resources, {unknown}"
        if reservation.at < math.inf:
            basis = (
                "by then enough of the jobs that run there have reached their timeouts"
            )
            return reservation.at - self.now, basis
        without_timeout = [
            self._job_of(holder)
            for holder in self._holders(reservation)
            if self.reservations.latest_end(holder) == math.inf
        ]
        names = ", ".join(without_timeout[:MOST_NAMED])
        return None, f"no timeout bounds {names or 'the jobs before it'}"

    def _jobs_to_wait_for(self) -> Iterator[str]:
        """The jobs that hold what it could get first."""
        reservation = Reservations(self.view, self.now, self.policy).reserve(self.job)
        if reservation is None:
            return
        for holder in self._holders(reservation)[:MOST_NAMED]:
            end = self.reservations.latest_end(holder)
            if holder in self.view.cooling:
                yield f"wait {format_duration(end - self.now)} for {holder}"
                continue
            if end < math.inf:
                bound = f"bounded by its timeout in {format_duration(end - self.now)}"
            else:
                bound = self._when_it_leaves(self._job_of(holder)) or "no timeout"
            yield f"wait for {self._job_of(holder)} ({bound})"

    def _holders(self, reservation: PlannedStart) -> list[str]:
        """Who holds what is reserved, the first to end first: its GPUs, or cores or
        memory of a node that has too little of these.
        """
        holders: set[str] = set()
        for reserved in reservation.placements:
            node = self.view.node(reserved.node_id)
            lacks_cpus = node.free.cpus < reserved.cpus
            lacks_memory = node.free.memory_gb < reserved.memory_gb
            for holder, share in node.bookings.items():
                uses_gpus = not set(reserved.gpu_uuids).isdisjoint(share.gpu_uuids)
                if lacks_cpus or lacks_memory or uses_gpus:
                    holders.add(holder)
        return sorted(
            holders, key=lambda holder: (self.reservations.latest_end(holder), holder)
        )

    def _job_of(self, holder: str) -> str:
        attempt = self.view.attempts.get(holder)
        return attempt.job_id if attempt else holder

    # --- what would help ---

    def _repairs(self) -> Iterator[str]:
        """How to make nodes and GPUs usable that could run it."""
        shape = self.job.shape
        for node in nodes_by_name(self.view):
            if not allowed(node, shape) or not could_hold(node, shape):
                continue
            if not node.online:
                yield _how_to_bring_online(node)
            elif quarantine_of(node, shape):
                yield self._how_to_trust(node)
            elif shape.gpus and fit(node.free, shape) is None:
                yield from self._gpu_repairs(node)

    def _how_to_trust(self, node: Node) -> str:
        place = f"node:{node.title}"
        if place not in self.view.external_queues.trust.quarantined:
            place = provider_for(node, self.job.shape)
        return _end_quarantine(place)

    def _gpu_repairs(self, node: Node) -> Iterator[str]:
        shape = self.job.shape
        devices = suitable_devices(node.devices.values(), ignoring_quarantine(shape))
        for device in devices:
            if not device.usable:
                yield (
                    f"bring back GPU {device.index} of {node.title} (it is"
                    f" {device.why_not})"
                )
        for device in devices:
            if device.usable and why_unavailable(device, shape):
                yield _end_quarantine(f"gpu:{device.uuid}")


def _narrow_choice(advice: list[Advice]) -> str:
    """The constraint that leaves a job few GPUs to choose from; empty if none does."""
    for item in advice:
        if item.constraint in ("pinned", "gpu_class"):
            return item.constraint
    return ""


def _how_to_bring_online(node: Node) -> str:
    if node.state == "draining":
        return f"stop draining node {node.title} (it is {node.why_not})"
    if node.cordoned:
        return (
            f"give node {node.title} jobs again (gpuyard nodes uncordon {node.title})"
        )
    return f"start the agent of node {node.title} (it is {node.why_not})"


def _end_quarantine(place: str) -> str:
    return f"end the quarantine of {place} (gpuyard trust forget {place})"
