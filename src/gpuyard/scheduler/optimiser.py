"""The optimiser: filter, fit, score. Which of the offers is best for a job, what it would cost and how long it takes.

What is expected comes from four sources: the offer itself (price, wait), this installation's own history (waits,
failures, interruptions, the speed of each kind of GPU), what was found out about the place (`trust`), and guesses where
all are silent. A place with a score s (0 to 1) does what it claims with that chance, so of the attempts that do not
fail anyway (1 - failed) only the part s is expected to go well there: all in all 1 - (1 - failed) * s fail.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from gpuyard.domain.offers import Offer, Strategy
from gpuyard.domain.shape import Shape
from gpuyard.scheduler.history import History
from gpuyard.scheduler.trust import Trust

_HOUR_S = 3600.0
USUAL_RUN_S = 3600.0
"""How long a job is taken to run when nobody says and no job of its type has completed."""
USUAL_WAIT_S = 60.0
"""How long a place is taken to keep a job waiting of which nothing is known."""
# An attempt that is cut off has lost half of its run on average; one that finds nothing left costs a minute.
_LOST_PART, _NOTHING_S = 0.5, 60.0
_MOST_LOST = 0.9
# Where a job has run, its files and checkpoints are: elsewhere they have to be brought first.
_MOVE_S = 120.0
# An hour is worth this where no offer has a price: only the ratio of wait to run matters then.
_ANY_WORTH = 1.0


@dataclass(frozen=True, slots=True)
class Need:
    """What of a job matters to the choice besides its shape: `run_s`, how long it is expected to run on the slowest
    offer that suits; `home`, the provider where its data is."""

    run_s: float = USUAL_RUN_S
    home: str = ""


class Forecast(NamedTuple):
    """What to expect of a job at an offer, in seconds and in the currency of billing.

    `run_s` counts what is lost and done again. `per_hour` is None when its price is not known in our currency.
    """

    offer: Offer
    wait_s: float
    run_s: float
    per_hour: float | None

    @property
    def cost(self) -> float | None:
        """The whole job's."""
        return None if self.per_hour is None else self.per_hour * self.run_s / _HOUR_S


def ranked(
    offers: Iterable[Offer], shape: Shape, need: Need, history: History, strategy: Strategy,
    trust: Trust | None = None,
) -> list[Forecast]:  # fmt: skip
    """The `offers`, which suit the shape, best first. Equal ones stand in the order of their ids.

    `trust`: what was found out about places; None for nothing.
    """
    found = list(offers)
    if not found:
        return []
    speeds = {kind: history.speed(kind) for kind in {offer.kind for offer in found}}
    slowest = min(speeds.values())
    scores = [trust.score(offer) if trust else None for offer in found]
    forecasts = [_forecast(offer, shape, need, history, slowest / speeds[offer.kind], score)
                 for offer, score in zip(found, scores, strict=True)]  # fmt: skip
    return sorted(forecasts, key=_scorer(strategy, forecasts))


def _forecast(offer: Offer, shape: Shape, need: Need, history: History, pace: float, score: float | None) -> Forecast:
    """`pace`: how long the job runs there, as a part of how long it runs on the slowest; `score`: how far it is
    trusted."""
    risk = history.risk(offer.id, spot=offer.spot)
    wait_s = risk.wait_s if risk.wait_s is not None else USUAL_WAIT_S if offer.wait_s is None else offer.wait_s
    if need.home and need.home != offer.provider:
        wait_s += _MOVE_S
    # Each attempt that is cut off costs half a run and another wait; so many are cut off before one is not.
    failed = risk.failed if score is None else 1 - (1 - risk.failed) * score
    lost = min(failed + risk.interrupted, _MOST_LOST)
    again = lost / (1 - lost)
    run_s = need.run_s * pace * (1 + _LOST_PART * again)
    wait_s = wait_s * (1 + again) + _NOTHING_S * risk.nothing / (1 - min(risk.nothing, _MOST_LOST))
    return Forecast(offer, wait_s, run_s, hourly(offer, shape))


def hourly(offer: Offer, shape: Shape) -> float | None:
    """The offer's price for the whole shape, an hour, in our currency: 0 where nobody bills, None when not known."""
    price = offer.price_per_hour
    if price is None:
        return None if offer.billed else 0.0
    if offer.rate is None:
        return None
    return float(price) * offer.rate * offer.part(shape.gpus, shape.cpus) * shape.nodes


def _scorer(strategy: Strategy, forecasts: list[Forecast]) -> Callable[[Forecast], tuple[float, float, str]]:
    """Forecasts as numbers of which the least is best; the second breaks ties of the first."""
    prices = [forecast.per_hour for forecast in forecasts if forecast.per_hour]
    # What nobody can name is not taken for cheap.
    unknown = 2 * max(prices, default=_ANY_WORTH)
    hour = median(prices) if prices else _ANY_WORTH

    def score(forecast: Forecast) -> tuple[float, float, str]:
        offer, wait_s, run_s, per_hour = forecast
        cost = (unknown if per_hour is None else per_hour) * run_s / _HOUR_S
        if strategy is Strategy.BALANCED:
            return cost + hour * (wait_s + run_s) / _HOUR_S, wait_s, offer.id
        if strategy is Strategy.COST:
            return cost, wait_s + run_s, offer.id
        return run_s if strategy is Strategy.PERFORMANCE else wait_s, cost, offer.id

    return score
