"""Estimates: where a job that is not submitted could run, best place first, how long that takes and what it costs."""

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from gpuyard.domain.offers import Strategy
from gpuyard.scheduler.engines import lacks, need_of
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.placement import SpaceOf, candidates
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.refusal import reasons
from gpuyard.scheduler.view import View

_WHOLE: SpaceOf = attrgetter("whole")


@dataclass(frozen=True, slots=True)
class Place:
    """A node of ours (`kind` is `node`) or an `offer`, and what a job finds there; times in seconds.

    `suits`: the job could run there. `per_hour` and `cost` are in the currency of billing; None is not known, and so
    is `wait_s` of a node on which something is in the way. `reasons`: why it does not suit, or what is in the way now.
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
    """The places in the order in which they are tried; `run_s` and on what `basis` it is expected."""

    strategy: Strategy
    run_s: float
    basis: str
    places: tuple[Place, ...]


def estimate(view: View, job: LiveJob, now: float, policy: Policy, own_per_hour: float) -> Estimate:
    """Where the job could run. `own_per_hour`: the list price of a node of ours."""
    view.heed_trust(now)
    strategy = Strategy(job.shape.strategy) if job.shape.strategy else policy.strategy
    need = need_of(job, view.learning, view.engines.keeps)
    if job.estimated_s:
        basis = "the job says so"
    elif view.learning.usual_s(job.kind):
        basis = f"what jobs of type {job.kind} usually take"
    else:
        basis = "a guess: nothing like it has completed, and it has no estimated_duration_s"
    places = (*_nodes(view, job, need.run_s, own_per_hour), *_offers(view, job, now, policy))
    return Estimate(strategy, need.run_s, basis, tuple(sorted(places, key=lambda place: not place.suits)))


def _nodes(view: View, job: LiveJob, run_s: float, per_hour: float) -> Iterator[Place]:
    """Our own nodes, those with room first."""
    able = {found.node.id for found in candidates(view, job.shape, _WHOLE)}
    free = [found.node for found in candidates(view, job.shape)]
    others = [node for node in view.nodes.values() if node not in free]
    for node in (*free, *sorted(others, key=lambda node: (node.id not in able, node.title))):
        if node.id not in able:
            yield Place(node.title, "node", suits=False, reasons=reasons(node, job.shape, node.free))
            continue
        why_not = reasons(node, job.shape, node.free)
        yield Place(node.title, "node", True, why_not, None if why_not else 0.0, run_s, per_hour,
                    per_hour * run_s / 3600, price_source="the tier's list price")  # fmt: skip


def _offers(view: View, job: LiveJob, now: float, policy: Policy) -> Iterator[Place]:
    engines = view.engines
    forecasts = engines.ranked(job.shape, need_of(job, view.learning, engines.keeps), policy.strategy)
    for forecast in forecasts:
        offer = forecast.offer
        obstacle = engines.obstacle_of(offer, job.shape, now)
        yield Place(offer.id, "offer", True, (obstacle,) if obstacle else (), forecast.wait_s, forecast.run_s,
                    forecast.per_hour, forecast.cost, offer.region, offer.spot, offer.price_source)  # fmt: skip
    suited = {forecast.offer.id for forecast in forecasts}
    for _, offer in engines.offers():
        if offer.id not in suited:
            yield Place(offer.id, "offer", suits=False, reasons=tuple(lacks(offer, job.shape)), region=offer.region,
                        spot=offer.spot, price_source=offer.price_source)  # fmt: skip
