"""Rankings of offers that outlive a decision: to rank thousands takes longer than all
the rest of it.

What is learned of one offer moves that offer alone. All are ranked again when the
offers were read again, when a score of trust has changed, and when a kind of GPU has
turned out to be faster or slower than it was by more than a guess is good for.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuyard.domain.offers import Offer, Strategy
from gpuyard.domain.shape import Shape
from gpuyard.scheduler.history import History
from gpuyard.scheduler.optimiser import Forecast, Need, Ranker, Score
from gpuyard.scheduler.trust import TrustTable

# Speeds and durations are learned: a change by less than this part changes no choice
# that matters.
_TOLERANCE = 0.01
# Some tens of MB.
_MOST_FORECASTS = 200_000
_MOST_RANKINGS = 2_000

Key = tuple[Shape, Need, Strategy]
Readings = Sequence[Mapping[str, Offer]]


class KeptRanking:
    """Forecasts, the best first."""

    def __init__(self, ranker: Ranker) -> None:
        self.ranker = ranker
        self.trust_changes = ranker.trust.changes if ranker.trust else 0
        self.history_changes = ranker.history.changes
        self.forecasts = sorted(map(ranker.forecast, ranker.offers), key=ranker.score)
        self._scores = [ranker.score(forecast) for forecast in self.forecasts]
        self._score_of: dict[str, Score] = {
            forecast.offer.id: score
            for forecast, score in zip(self.forecasts, self._scores, strict=True)
        }

    def holds(self, history: History, trust: TrustTable) -> bool:
        """Whether it is only single offers of which anything new is known."""
        ranker = self.ranker
        return (
            ranker.history is history
            and ranker.trust is trust
            and self.trust_changes == trust.changes
            and all(
                math.isclose(history.speed(kind), speed, rel_tol=_TOLERANCE)
                for kind, speed in ranker.speeds.items()
            )
        )

    def learn(self) -> bool:
        """Move the offers of which more is known by now; False if they are too many."""
        history = self.ranker.history
        changed = history.changed_since(self.history_changes)
        if changed is None:
            return False
        self.history_changes = history.changes
        for offer_id in changed:
            if offer_id in self._score_of:
                self._move(offer_id)
        return True

    def _move(self, offer_id: str) -> None:
        # No two scores are equal: each has the id of its offer.
        index = bisect_left(self._scores, self._score_of[offer_id])
        del self._scores[index]
        offer = self.forecasts.pop(index).offer
        forecast = self.ranker.forecast(offer)
        score = self.ranker.score(forecast)
        index = bisect_left(self._scores, score)
        self._scores.insert(index, score)
        self.forecasts.insert(index, forecast)
        self._score_of[offer_id] = score


def _are_same(new: Readings, old: Readings) -> bool:
    return len(new) == len(old) and all(
        one is other for one, other in zip(new, old, strict=True)
    )


@dataclass(slots=True)
class KeptRankings:
    """The rankings that were asked for last, the newest at the end."""

    _kept: dict[Key, KeptRanking] = field(default_factory=dict[Key, KeptRanking])
    _forecasts: int = 0
    _readings: Readings = ()

    def get(
        self,
        key: Key,
        readings: Readings,
        history: History,
        trust: TrustTable,
        suitable: Callable[[], list[Offer]],
    ) -> Sequence[Forecast]:
        """The offers that are `suitable` for the shape of the key, the best first. It
        is good until the next call. `readings`: the offers of each external queue.
        """
        if not _are_same(readings, self._readings):
            # None holds any more, and each keeps the old offers in memory.
            self._kept.clear()
            self._forecasts = 0
            self._readings = readings
        ranking = self._kept.pop(key, None)
        if ranking is not None:
            self._forecasts -= len(ranking.forecasts)
            if not (ranking.holds(history, trust) and ranking.learn()):
                ranking = None
        if ranking is None:
            shape, need, strategy = key
            ranker = Ranker(suitable(), shape, need, history, strategy, trust)
            ranking = KeptRanking(ranker)
        self._kept[key] = ranking
        self._forecasts += len(ranking.forecasts)
        self._forget()
        return ranking.forecasts

    def _forget(self) -> None:
        while len(self._kept) > 1 and (
            self._forecasts > _MOST_FORECASTS or len(self._kept) > _MOST_RANKINGS
        ):
            oldest = next(iter(self._kept))
            self._forecasts -= len(self._kept.pop(oldest).forecasts)


def about(need: Need) -> Need:
    """The need with a run time that many jobs share: the nearest of steps, each longer
    than the last by twice the tolerance.
    """
    if need.run_s <= 0:
        return need
    step = math.log1p(2 * _TOLERANCE)
    run_s = math.exp(round(math.log(need.run_s) / step) * step)
    return Need(run_s, need.data_provider)
