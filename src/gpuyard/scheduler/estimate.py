"""Estimates: where a job that is not submitted could run, how long it would take there
and what it would cost.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from gpuyard.domain.offers import Strategy
from gpuyard.scheduler.external_queues import need_of, why_unsuitable
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.lateness import prospects
from gpuyard.scheduler.placement import SpaceOf, candidates
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.ranking import Ranking
from gpuyard.scheduler.refusal import reasons
from gpuyard.scheduler.share_texts import (
    jobs_ahead,
    quota_in_words,
    share_in_the_way,
)
from gpuyard.scheduler.verdicts import offer_forecasts
from gpuyard.scheduler.view import View
from gpuyard.scheduler.why_reserved import in_the_way, in_words

_WHOLE: SpaceOf = attrgetter("whole")


@dataclass(frozen=True, slots=True)
class PlaceEstimate:
    """What a job finds at a node of ours (`kind` is `node`) or at an offer (`offer`).
    Times are in seconds.

    `suits`: the job could run there. `reasons`: why not, or why not now. `per_hour` and
    `cost` are in the currency of billing. None means that a value is not known; so is
    `wait_s` of a node where the job cannot start now.
    """

    name: str
    kind: str
    suits: bool
    reasons: tuple[str, ...] = ()
    wait_s: float | None = None
    run_s: float | None = None
    per_hour: float | None = None
    cost: float | None = None
    region: str = ""
    spot: bool = False
    price_source: str = ""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The places, those that suit before the others. `run_s`: how long the job is
    expected to run; `basis`: how that is known. `ahead`: how many jobs would come
    before it; `in_the_way`: whose share or quota that is, for people, else empty.
    `deadline`: whether it can be met, for people, else empty; `in_time` says that for
    machines, None if it is not known.
    """

    strategy: Strategy
    run_s: float
    basis: str
    places: tuple[PlaceEstimate, ...]
    ahead: int = 0
    in_the_way: str = ""
    deadline: str = ""
    in_time: bool | None = None


def estimate(
    view: View, job: LiveJob, now: float, policy: Policy, own_per_hour: float
) -> Estimate:
    """Where the job could run. `own_per_hour`: the list price for our own nodes."""
    view.apply_quarantines(now)
    view.usage.look_at_month(now)
    strategy = Strategy(job.shape.strategy) if job.shape.strategy else policy.strategy
    need = need_of(job, view.learning, view.external_queues.workspace_providers)
    if job.estimated_s:
        basis = "the job says so"
    elif view.learning.usual_s(job.job_type):
        basis = f"what jobs of type {job.job_type} usually take"
    else:
        basis = (
            "a guess: nothing like it has completed, and nobody has said how long it"
            " takes (estimated_duration_s)"
        )
    places = list(_offers(view, job, now, policy))
    if not job.shape.model:
        places = [*_nodes(view, job, need.run_s, own_per_hour), *places]
    places.sort(key=lambda place: not place.suits)
    ahead, in_the_way = _line_before(view, job, now, policy)
    return Estimate(
        strategy,
        need.run_s,
        basis,
        tuple(places),
        ahead,
        in_the_way,
        prospects(view, job, now, policy),
        _in_time(job, now, need.run_s, places),
    )


def _in_time(
    job: LiveJob, now: float, run_s: float, places: Sequence[PlaceEstimate]
) -> bool | None:
    """Whether the job can end by its deadline; None without one, and if it is not known
    when it could start.
    """
    if job.deadline is None:
        return None
    ends = [
        now + place.wait_s + place.run_s
        for place in places
        if place.suits and place.wait_s is not None and place.run_s is not None
    ]
    if ends:
        return min(ends) <= job.deadline
    return False if now + run_s > job.deadline else None


def _line_before(
    view: View, job: LiveJob, now: float, policy: Policy
) -> tuple[int, str]:
    """How many jobs would come before the job, and whose share, quota or reservation
    is in the way.
    """
    ranking = Ranking(policy, view.learning)
    quota = quota_in_words(view, job)
    reservation = in_words(in_the_way(view, job, now, policy))
    if reservation:
        reservation = f"{reservation[:1].upper()}{reservation[1:]}."
    if view.usage.by_share:
        ahead = jobs_ahead(view, job, now, ranking)
        before = ahead.total()
        limit = quota or share_in_the_way(view, job, now, ahead)
    else:
        rank = ranking.of(job, now)
        before = sum(ranking.of(other, now) < rank for other in view.queue)
        limit = quota
    return before, " ".join(filter(None, [limit, reservation]))


def _nodes(
    view: View, job: LiveJob, run_s: float, per_hour: float
) -> Iterator[PlaceEstimate]:
    """Our own nodes, those with room first."""
    able = {found.node.id for found in candidates(view, job.shape, _WHOLE)}
    with_room = [found.node for found in candidates(view, job.shape)]
    others = [node for node in view.nodes.values() if node not in with_room]
    others.sort(key=lambda node: (node.id not in able, node.title))
    for node in (*with_room, *others):
        why_not = reasons(node, job.shape, node.free)
        if node.id not in able:
            yield PlaceEstimate(node.title, "node", suits=False, reasons=why_not)
        else:
            yield PlaceEstimate(
                node.title,
                "node",
                suits=True,
                reasons=why_not,
                wait_s=None if why_not else 0.0,
                run_s=run_s,
                per_hour=per_hour,
                cost=per_hour * run_s / 3600,
                price_source="the tier's list price",
            )


def _offers(
    view: View, job: LiveJob, now: float, policy: Policy
) -> Iterator[PlaceEstimate]:
    """All offers for jobs of its kind, those that suit first."""
    forecasts = offer_forecasts(view, job, policy)
    for forecast in forecasts:
        offer = forecast.offer
        obstacle = view.external_queues.obstacle(offer, job.shape, now)
        yield PlaceEstimate(
            offer.id,
            "offer",
            suits=True,
            reasons=(obstacle,) if obstacle else (),
            wait_s=forecast.wait_s,
            run_s=forecast.run_s,
            per_hour=forecast.per_hour,
            cost=forecast.cost,
            region=offer.region,
            spot=offer.spot,
            price_source=offer.price_source,
        )
    suitable = {forecast.offer.id for forecast in forecasts}
    for offer in view.external_queues.offers_like(job.shape):
        if offer.id not in suitable:
            yield PlaceEstimate(
                offer.id,
                "offer",
                suits=False,
                reasons=tuple(why_unsuitable(offer, job.shape)),
                region=offer.region,
                spot=offer.spot,
                price_source=offer.price_source,
            )
