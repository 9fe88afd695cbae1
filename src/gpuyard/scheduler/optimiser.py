"""The optimiser: ranks offers for a job by expected cost and time.

Forecasts use four sources: the offer (price, wait), the history of this instance
(waits, failures, interruptions, the speed of each kind of GPU), the trust in the place,
and guesses if there is nothing else. A place with a score s (0 to 1) works as claimed
with that chance. So of the attempts that would not fail anyway (1 - failed), only the
part s succeeds there, and 1 - (1 - failed) * s of all fail.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from gpuyard.domain.offers import Offer, Strategy
from gpuyard.domain.shape import Shape
from gpuyard.domain.trust import UNVERIFIED
from gpuyard.scheduler.history import History
from gpuyard.scheduler.trust import TrustTable

_HOUR_S = 3600.0
USUAL_RUN_S = 3600.0
"""The expected run time if the job does not say and no job of its type has
completed.
"""
USUAL_WAIT_S = 60.0
"""The expected wait at an offer about which nothing is known."""
# An attempt that is cut off has lost half of its run on average. One that finds no
# capacity costs a minute.
_LOST_PART = 0.5
_NO_CAPACITY_S = 60.0
_MOST_LOST = 0.9
# The files and checkpoints of a job are where it ran. Elsewhere they must be copied
# first.
_MOVE_S = 120.0
# The price of an hour if no offer has a price. Then only the ratio of wait to run time
# matters.
_ANY_PRICE = 1.0


@dataclass(frozen=True, slots=True)
class Need:
    """What matters to the choice besides the shape: `run_s`, how long the job is
    expected to run on the slowest offer that suits, and `data_provider`, the provider
    where its data is.
    """

    run_s: float = USUAL_RUN_S
    data_provider: str = ""


class Forecast(NamedTuple):
    """What to expect of a job at an offer, in seconds and in the currency of billing.

    `run_s` includes work that is lost and done again. `per_hour` is None if the price
    is not known in our currency.
    """

    offer: Offer
    wait_s: float
    run_s: float
    per_hour: float | None

    @property
    def cost(self) -> float | None:
        """The cost of the whole job; None if the price is not known."""
        return None if self.per_hour is None else self.per_hour * self.run_s / _HOUR_S


Score = tuple[float, float, str]


def ranked(
    offers: Iterable[Offer],
    shape: Shape,
    need: Need,
    history: History,
    strategy: Strategy,
    trust: TrustTable | None = None,
) -> list[Forecast]:
    """Forecasts for `offers`, the best first, equal ones in the order of their ids. All
    offers must suit the shape.

    `trust`: scores of places; None for no scores. If some offers have a score, one
    without counts as UNVERIFIED.
    """
    ranker = Ranker(list(offers), shape, need, history, strategy, trust)
    return sorted(map(ranker.forecast, ranker.offers), key=ranker.score)


class Ranker:
    """How the offers of one ranking are forecast and compared; see `ranked`. `speeds`:
    those of the kinds of GPU among them, on which it relies.
    """

    def __init__(
        self,
        offers: list[Offer],
        shape: Shape,
        need: Need,
        history: History,
        strategy: Strategy,
        trust: TrustTable | None = None,
    ) -> None:
        self.offers = offers
        self.history = history
        self.trust = trust
        self._shape = shape
        self._need = need
        self._strategy = strategy
        kinds = {offer.kind for offer in offers}
        self.speeds = {kind: history.speed(kind) for kind in kinds}
        self._slowest = min(self.speeds.values(), default=1.0)
        has_scores = trust is not None and any(
            trust.score(offer) is not None for offer in offers
        )
        self._without_score = UNVERIFIED if has_scores else None
        prices = list(filter(None, (hourly(offer, shape) for offer in offers)))
        # An unknown price must not seem cheap.
        self._unknown_price = 2 * max(prices, default=_ANY_PRICE)
        # An hour of waiting or running costs as much as an hour of the median offer.
        self._price_of_time = median(prices) if prices else _ANY_PRICE

    def forecast(self, offer: Offer) -> Forecast:
        """What to expect of the job at the offer."""
        pace = self._slowest / self.speeds[offer.kind]
        score = self.trust.score(offer) if self.trust else None
        if score is None:
            score = self._without_score
        return _forecast(offer, self._shape, self._need, self.history, pace, score)

    def score(self, forecast: Forecast) -> Score:
        """The sort key: the least is best, and no two offers have the same."""
        offer, wait_s, run_s, per_hour = forecast
        strategy = self._strategy
        price = self._unknown_price if per_hour is None else per_hour
        cost = price * run_s / _HOUR_S
        if strategy is Strategy.BALANCED:
            time_cost = self._price_of_time * (wait_s + run_s) / _HOUR_S
            return cost + time_cost, wait_s, offer.id
        if strategy is Strategy.COST:
            return cost, wait_s + run_s, offer.id
        if strategy is Strategy.PERFORMANCE:
            return run_s, cost, offer.id
        return wait_s, cost, offer.id


def _forecast(
    offer: Offer,
    shape: Shape,
    need: Need,
    history: History,
    pace: float,
    score: float | None,
) -> Forecast:
    """`pace`: the run time there as a part of that on the slowest offer; `score`: the
    trust in the place, None if unknown.
    """
    risk = history.risk(offer.id, spot=offer.spot)
    wait_s = risk.wait_s
    if wait_s is None:
        wait_s = USUAL_WAIT_S if offer.wait_s is None else offer.wait_s
    if need.data_provider and need.data_provider != offer.provider:
        wait_s += _MOVE_S
    failed = risk.failed if score is None else 1 - (1 - risk.failed) * score
    lost = min(failed + risk.interrupted, _MOST_LOST)
    # The expected number of attempts that are cut off before one is not. Each costs
    # half a run and another wait.
    repeats = lost / (1 - lost)
    run_s = need.run_s * pace * (1 + _LOST_PART * repeats)
    without_capacity = risk.no_capacity / (1 - min(risk.no_capacity, _MOST_LOST))
    wait_s = wait_s * (1 + repeats) + _NO_CAPACITY_S * without_capacity
    return Forecast(offer, wait_s, run_s, hourly(offer, shape))


def hourly(offer: Offer, shape: Shape) -> float | None:
    """The offer's price per hour for the whole shape, in our currency: 0 if it is not
    billed, None if it is not known.
    """
    price = offer.price_per_hour
    if price is None:
        return None if offer.billed else 0.0
    if offer.rate is None:
        return None
    return float(price) * offer.rate * offer.part(shape.gpus, shape.cpus) * shape.nodes
