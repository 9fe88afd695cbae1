"""Why: what a pending job waits for, which nodes were rejected and for what, what would help, and an estimate."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from operator import attrgetter

from gpuyard.domain.states import JobState
from gpuyard.domain.units import format_duration
from gpuyard.scheduler.advice import smaller_requests
from gpuyard.scheduler.engines import lacks as unfit
from gpuyard.scheduler.engines import need_of
from gpuyard.scheduler.fitting import allowed, anywhere, barred, fit, holds, provider_for, suitable
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.nodes import Node
from gpuyard.scheduler.optimiser import Forecast
from gpuyard.scheduler.placement import SpaceOf, candidates, free_space, place, would_fit
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.ranking import Ranking
from gpuyard.scheduler.refusal import count, describe, impossible, kept_from, reasons
from gpuyard.scheduler.reservation import Reservation, Reservations, outlasts
from gpuyard.scheduler.view import LiveAttempt, Promise, Start, View

WHOLE: SpaceOf = attrgetter("whole")
FULL = "has as many waiting as it is given"
MOST_NAMED = 3
"""How many jobs to wait for are named; more would be noise."""


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """What the job finds on a node or at an offer: does a share fit now, would it if nothing were booked and all were
    well; of an offer that suits, what to expect there."""

    node: str
    name: str
    fits_now: bool
    would_fit_empty: bool
    reasons: tuple[str, ...]
    expects: str = ""


@dataclass(frozen=True, slots=True)
class Why:
    """Why a job has not started.

    `constraint` is one word: `dependency`, `backoff`, `starting`, `preempting`, `priority`, `reservation`, `capacity`,
    `no_nodes`, `offline`, `quarantined`, `engine`, `impossible`, or the need that stands in the way: `pinned`,
    `gpu_class`, `gpu_memory`, `gpu_capability`, `gpus`, `nodes`, `cpus`, `memory`. `position` (from 1) and `ahead`
    count the jobs that may start now; `position` is None while the job does not stand in line. `estimate_s` is how many
    seconds from now it starts at the latest, None when nothing bounds it; `estimate_basis` says why.
    """

    summary: str
    constraint: str
    estimate_basis: str
    estimate_s: float | None = None
    position: int | None = None
    ahead: int = 0
    candidates: tuple[NodeVerdict, ...] = ()
    would_help: tuple[str, ...] = ()


def why(view: View, job_id: str, now: float, policy: Policy) -> Why | None:
    """Why the job is pending at `now` (UTC seconds); None when it is not pending or not known.

    It looks at all jobs to find the position, so it is for people's questions and not for decisions.
    """
    job = view.jobs.get(job_id)
    attempt = view.attempts.get(job.attempt_id or "") if job else None
    if job and attempt and (attempt.id in view.engines.waiting or attempt.id in view.engines.reasons):
        return replace(_at_engine(view, attempt), candidates=tuple(offer_verdicts(view, job, now, policy)))
    if job is None or job.state is not JobState.QUEUED:
        return None
    view.heed_trust(now)
    view.wake(now, policy.retry_max_s)
    action = view.tentative.get(job_id)
    if isinstance(action, Start):
        names = ", ".join(share.offer or view.node(share.node_id).title for share in action.placements)
        return Why(f"It is being started on {names}.", "starting", "it has been placed", 0.0)
    if job.waits_for:
        return _dependency(view, job)
    if job_id in view.promises:
        return _making_room(view, view.promises[job_id])
    if job_id not in view.queue:
        return _backoff(job, now)
    answer = _Line(view, job, now, policy).answer()
    return replace(answer, summary=f"It was preempted. {answer.summary}") if job.preemptions else answer


def _at_engine(view: View, attempt: LiveAttempt) -> Why:
    """It waits in the queue of an engine, which says why in its own words."""
    engine, said = view.engines.known.get(attempt.provider), view.engines.reasons.get(attempt.id)
    if engine and engine.problem:
        summary = f"It was sent to {attempt.offer or attempt.provider}, which {engine.problem}."
        return Why(summary, "engine", "when it answers again is not known")
    if attempt.provider_ref is None:
        return Why(f"It is on its way to {attempt.provider}: {said or 'it is being submitted'}.", "starting",
                   "how long that takes is not known")  # fmt: skip
    told = f": {said}" if said else "; nothing has been said of it yet"
    summary = f"It waits in the queue of {attempt.provider} ({attempt.provider_ref}){told}."
    return Why(summary, "engine", f"{attempt.provider} decides when it starts")


def _dependency(view: View, job: LiveJob) -> Why:
    lost = next((parent for parent in job.waits_for if parent in view.ended), None)
    if lost is not None:
        summary = f"It can never start: it depends on {lost}, which ended {view.ended[lost]}."
        return Why(summary, "dependency", "it will be failed", would_help=(f"resume {lost}, then this job",))
    named, more = job.waits_for[:MOST_NAMED], len(job.waits_for) - MOST_NAMED
    states = ((parent, view.jobs.get(parent)) for parent in named)
    told = [f"{parent} ({known.state if known else 'not known'})" for parent, known in states]
    summary = f"It depends on {', '.join(told)}{f' and {more} more' if more > 0 else ''}."
    basis = "when the jobs it depends on complete is not known"
    help_ = tuple(f"wait for {parent} to complete" for parent in named)
    return Why(summary, "dependency", basis, would_help=help_)


def _making_room(view: View, promise: Promise) -> Why:
    leaving = sorted(attempt.job_id for key in promise.attempts if (attempt := view.attempts.get(key)))
    named = ", ".join(leaving[:MOST_NAMED]) or "nobody any more"
    basis = "when the jobs that are asked to leave have saved their work is not known"
    return Why(f"Room is being made for it: {named} is being preempted.", "preempting", basis)


def _backoff(job: LiveJob, now: float) -> Why:
    rest = (job.not_before or now) - now
    basis = "it may start then at the earliest; what stands in line by then is not known"
    return Why(f"It was put off and stands in line again in {format_duration(rest)}.", "backoff", basis)


def _release(place: str) -> str:
    return f"end the quarantine of {place} (gpuyard trust forget {place})"


def offer_verdicts(view: View, job: LiveJob, now: float, policy: Policy) -> Iterator[NodeVerdict]:
    """What the job finds at each offer: those that suit, best first, with what is expected; then the others."""
    engines = view.engines
    forecasts = _ranking(view, job, policy)
    for forecast in forecasts:
        offer = forecast.offer
        told = engines.obstacle_of(offer, job.shape, now) or (FULL if job.state is JobState.QUEUED else "")
        yield NodeVerdict(offer.id, offer.id, fits_now=False, would_fit_empty=True,
                          reasons=(told,) if told else (), expects=expects(forecast))  # fmt: skip
    suited = {forecast.offer.id for forecast in forecasts}
    for engine, offer in engines.offers():
        if offer.id not in suited:
            obstacle = engines.obstacle(engine, offer, job.shape, now)
            told = (*unfit(offer, job.shape), *([obstacle] if obstacle else []))
            yield NodeVerdict(offer.id, offer.id, fits_now=False, would_fit_empty=False, reasons=told)


def _ranking(view: View, job: LiveJob, policy: Policy) -> list[Forecast]:
    return view.engines.ranked(job.shape, need_of(job, view.learning, view.engines.keeps), policy.strategy)


def expects(forecast: Forecast) -> str:
    """`about 4 min until it starts, runs 2 h, costs 6.4`."""
    cost = "its price is not known here" if forecast.cost is None else f"costs {forecast.cost:.3g}"
    wait, run = format_duration(forecast.wait_s), format_duration(forecast.run_s)
    return f"about {wait} until it starts, runs {run}, {cost}"


class _Line:
    """A job that stands in line, and what keeps it there."""

    def __init__(self, view: View, job: LiveJob, now: float, policy: Policy) -> None:
        self.view, self.job, self.now, self.policy = view, job, now, policy
        self.ranking = Ranking(policy, view.learning)
        self.ahead = (view.queue.position(job.id, self.ranking, now) or 1) - 1
        self.reservations = Reservations(view, now, policy)

    def answer(self) -> Why:
        fits = place(self.view, self.job.shape) is not None
        told = self._told_to_wait() if fits else self._no_room()
        return replace(told, position=self.ahead + 1, ahead=self.ahead, candidates=tuple(self._verdicts()))

    def _told_to_wait(self) -> Why:
        """There is room, but others come first."""
        if not self.view.queue.is_head(self.job):
            summary = f"There is room for it, but it is not its turn: {count(self.ahead, 'job')} before it in line."
            return Why(summary, "priority", "the jobs before it are not placed yet", would_help=("raise its priority",))
        heads = self._heads_before()
        if not heads or self.reservations.backfill(self.job, heads) is not None:
            return Why("It can start now.", "starting", "there is room for it", 0.0)
        held = self._blocking()
        named = f"{held.job.id} ({describe(held.job.shape)})"
        estimate_s, basis = self._estimate()
        rest = held.at - self.now - self.policy.end_margin_s
        help_ = [f"give it a timeout of at most {format_duration(rest)}" if rest < math.inf else "give it a timeout"]
        return Why(f"There is room for it, but it could delay {named}, which comes first.", "reservation", basis,
                   estimate_s, would_help=(*(help_ if rest > 0 else ()), "raise its priority"))  # fmt: skip

    def _blocking(self) -> Reservation:
        """The first reservation on a node where the job would fit that the job may outlast."""
        end = self.reservations.surely_ends(self.job.id)
        nodes = {candidate.node.id for candidate in candidates(self.view, self.job.shape)}
        return next(
            made for made in self.reservations.made if outlasts(end, made.at) and not nodes.isdisjoint(made.spare)
        )

    def _no_room(self) -> Why:
        shape, online = self.job.shape, [node for node in self.view.nodes.values() if node.online]
        if self.view.engines.able(shape) and len(candidates(self.view, shape, WHOLE)) < shape.nodes:
            return self._held_back()
        if not any(allowed(node, shape) for node in online):
            summary = "No node that it may use is online." if self.view.nodes else "No node is known yet."
            return Why(summary, "no_nodes", "when a node comes is not known", would_help=tuple(self._repairs()))
        if len(candidates(self.view, shape, WHOLE)) >= shape.nodes:
            return self._in_use()
        if would_fit(self.view, anywhere(shape), WHOLE):
            return self._in_quarantine()
        advice = smaller_requests(self.view, shape, WHOLE)
        never = impossible(self.view, shape)
        constraint = advice[0].constraint if advice and never else "impossible" if never else "offline"
        summary = f"The nodes online cannot hold it: it needs {describe(shape)}."
        help_ = (*self._repairs(), *(item.text for item in advice), *([never.largest] if never else []))
        return Why(summary, constraint, "nothing online can hold it", would_help=help_)

    def _held_back(self) -> Why:
        """Only engines can run it, and they are not given more for the moment."""
        engines = self.view.engines
        told = [f"{forecast.offer.id} {engines.obstacle_of(forecast.offer, self.job.shape, self.now) or FULL}"
                for forecast in _ranking(self.view, self.job, self.policy)]  # fmt: skip
        return Why(f"It is held back here: {'; '.join(told[:MOST_NAMED])}.", "engine", "when room comes is not known")

    def _in_quarantine(self) -> Why:
        """It would fit if all that is in quarantine were trusted."""
        shape = self.job.shape
        told = [f"{node.title} {'; '.join(lacks)}" for node in self._nodes() if allowed(node, shape)
                and node.online and holds(node, shape) and (lacks := reasons(node, shape, node.whole))]  # fmt: skip
        help_ = (*self._repairs(), *(item.text for item in smaller_requests(self.view, shape, WHOLE)))
        return Why(f"What could run it is in quarantine: {'; '.join(told[:MOST_NAMED])}.", "quarantined",
                   "it is looked at again when a quarantine ends", would_help=help_)  # fmt: skip

    def _in_use(self) -> Why:
        """It would fit if less were booked."""
        advice = smaller_requests(self.view, self.job.shape, free_space)
        narrow = next((item.constraint for item in advice if item.constraint in ("pinned", "gpu_class")), "capacity")
        before = f"; {count(self.ahead, 'job')} before it in line" if self.ahead else ""
        estimate_s, basis = self._estimate()
        help_ = (*self._waits(), *self._repairs(), *(item.text for item in advice))
        return Why(f"What it needs is in use: {describe(self.job.shape)}{before}.", narrow, basis, estimate_s,
                   would_help=help_)  # fmt: skip

    def _heads_before(self) -> list[LiveJob]:
        heads = self.view.queue.heads(self.ranking, self.now)
        return list(takewhile(lambda head: head is not self.job, heads))

    def _reservation(self) -> Reservation | None:
        """Its own reservation beside those of the heads before it."""
        reservations = Reservations(self.view, self.now, self.policy)
        for head in self._heads_before()[: self.policy.reserved_heads]:
            reservations.reserve(head)
        return reservations.reserve(self.job)

    def _estimate(self) -> tuple[float | None, str]:
        if not self.view.queue.is_head(self.job):
            return None, "jobs with the same needs stand before it, and how long they will hold them is not known"
        mine = self._reservation()
        if mine is None:
            return None, "jobs before it need the same resources, and how long they will hold them is not known"
        if mine.at == math.inf:
            endless = [holder for holder in self._holders(mine) if self.reservations.surely_ends(holder) == math.inf]
            names = ", ".join(self._job_of(holder) for holder in endless[:MOST_NAMED])
            return None, f"no timeout bounds {names or 'the jobs before it'}"
        return mine.at - self.now, "by then enough of the jobs that run there have reached their timeouts"

    def _waits(self) -> Iterator[str]:
        """The jobs that hold what it could get soonest."""
        mine = Reservations(self.view, self.now, self.policy).reserve(self.job)
        for holder in self._holders(mine)[:MOST_NAMED] if mine else ():
            end = self.reservations.surely_ends(holder)
            bound = f"bounded by its timeout in {format_duration(end - self.now)}" if end < math.inf else "no timeout"
            yield f"wait for {self._job_of(holder)} ({bound})"

    def _holders(self, reservation: Reservation) -> list[str]:
        """Who holds what is reserved, first to end first: its GPUs, or cores or memory of a node that lacks these."""
        holders: set[str] = set()
        for mine in reservation.placements:
            node = self.view.node(mine.node_id)
            full = node.free.cpus < mine.cpus or node.free.memory_gb < mine.memory_gb
            for holder, share in node.bookings.items():
                if full or not set(mine.gpu_uuids).isdisjoint(share.gpu_uuids):
                    holders.add(holder)
        return sorted(holders, key=lambda holder: (self.reservations.surely_ends(holder), holder))

    def _job_of(self, holder: str) -> str:
        attempt = self.view.attempts.get(holder)
        return attempt.job_id if attempt else holder

    def _repairs(self) -> Iterator[str]:
        """Nodes and GPUs that would do if they were well."""
        shape = self.job.shape
        for node in self._nodes():
            if not allowed(node, shape) or not holds(node, shape):
                continue
            if not node.online:
                cure = "stop draining" if node.state == "draining" else "start the agent of"
                yield f"{cure} node {node.title} (it is {node.why_not})"
            elif barred(node, shape):
                own = f"node:{node.title}"
                yield _release(own if own in self.view.engines.trust.quarantined else provider_for(node, shape))
            elif shape.gpus and fit(node.free, shape) is None:
                fitting = suitable(node.devices.values(), anywhere(shape))
                broken = [item for item in fitting if not item.usable]
                yield from (f"bring back GPU {item.index} of {node.title} (it is {item.why_not})" for item in broken)
                yield from (_release(f"gpu:{item.uuid}") for item in fitting if item.usable and kept_from(item, shape))

    def _verdicts(self) -> Iterator[NodeVerdict]:
        for node in self._nodes():
            lacks = reasons(node, self.job.shape, node.free)
            would = allowed(node, self.job.shape) and holds(node, self.job.shape)
            yield NodeVerdict(node.id, node.title, not lacks, would, lacks)
        yield from offer_verdicts(self.view, self.job, self.now, self.policy)

    def _nodes(self) -> list[Node]:
        return sorted(self.view.nodes.values(), key=lambda node: (node.title, node.id))
