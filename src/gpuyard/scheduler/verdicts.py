"""Verdicts: what a job finds on each node and at each offer, for people."""

from collections.abc import Iterator

from gpuyard.domain.states import JobState
from gpuyard.domain.units import format_duration
from gpuyard.scheduler.explanation import NodeVerdict
from gpuyard.scheduler.external_queues import need_of, why_unsuitable
from gpuyard.scheduler.fitting import allowed, could_hold
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.nodes import Node
from gpuyard.scheduler.optimiser import Forecast
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.refusal import reasons
from gpuyard.scheduler.view import View

FULL = "has as many waiting as it is given"


def nodes_by_name(view: View) -> list[Node]:
    """All nodes, in the order of their names."""
    return sorted(view.nodes.values(), key=lambda node: (node.title, node.id))


def node_verdicts(view: View, job: LiveJob) -> Iterator[NodeVerdict]:
    """What the job finds on each node."""
    for node in nodes_by_name(view):
        refusals = reasons(node, job.shape, node.free)
        would_fit = allowed(node, job.shape) and could_hold(node, job.shape)
        yield NodeVerdict(node.id, node.title, not refusals, would_fit, refusals)


def offer_verdicts(
    view: View, job: LiveJob, now: float, policy: Policy
) -> Iterator[NodeVerdict]:
    """What the job finds at each offer. Offers that suit come first, the best one
    before the others, with what to expect there.
    """
    table = view.external_queues
    forecasts = offer_forecasts(view, job, policy)
    for forecast in forecasts:
        offer = forecast.offer
        obstacle = table.obstacle(offer, job.shape, now)
        if not obstacle and job.state is JobState.QUEUED:
            obstacle = FULL
        yield NodeVerdict(
            offer.id,
            offer.id,
            fits_now=False,
            would_fit_empty=True,
            reasons=(obstacle,) if obstacle else (),
            expects=expectation(forecast),
        )
    suitable = {forecast.offer.id for forecast in forecasts}
    for offer in table.offers_like(job.shape):
        if offer.id not in suitable:
            refusals = why_unsuitable(offer, job.shape)
            if obstacle := table.obstacle(offer, job.shape, now):
                refusals.append(obstacle)
            yield NodeVerdict(
                offer.id,
                offer.id,
                fits_now=False,
                would_fit_empty=False,
                reasons=tuple(refusals),
            )


def offer_forecasts(view: View, job: LiveJob, policy: Policy) -> list[Forecast]:
    """What to expect of the offers that suit the job, the best first."""
    table = view.external_queues
    need = need_of(job, view.learning, table.workspace_providers)
    return table.ranked_offers(job.shape, need, policy.strategy)


def expectation(forecast: Forecast) -> str:
    """`about 4 min until it starts, runs 2 h, costs 6.4`."""
    wait = format_duration(forecast.wait_s)
    run = format_duration(forecast.run_s)
    if forecast.cost is None:
        cost = "its price is not known here"
    else:
        cost = f"costs {forecast.cost:.3g}"
    return f"about {wait} until it starts, runs {run}, {cost}"
