"""Demand forecast: at what time of day models are requested.

A day has 96 slots of a quarter of an hour (UTC). Each slot has the share of days on
which it saw a request; newer days weigh more. Demand is expected in slots with a share
of at least `EXPECTED`, which takes requests on three days.
"""

from collections import defaultdict
from dataclasses import dataclass

SLOT_S = 900.0
SLOTS = 96
_DAY_S = SLOT_S * SLOTS
NEWEST = 0.15
"""The weight of the newest day; each earlier day weighs this part less than the next
one.
"""
EXPECTED = 0.35


@dataclass(frozen=True, slots=True)
class ModelDemand:
    """A slot in which a model was requested, last on `day` (days since 1970). `share`:
    the share of days on which it was requested, as of that day.
    """

    model: str
    slot: int
    day: int
    share: float

    def share_on(self, day: int) -> float:
        """The share at the beginning of a later day, if there were no requests in
        between.
        """
        return self.share * (1 - NEWEST) ** max(day - self.day - 1, 0)


class DemandForecast:
    """The forecast for all models. Times are UTC seconds."""

    def __init__(self) -> None:
        self._known: dict[str, dict[int, ModelDemand]] = defaultdict(dict)
        # By model: the slot since 1970 in which it was computed, and the result.
        self._next: dict[str, tuple[int, tuple[float, float] | None]] = {}

    def restore(self, demand: ModelDemand) -> None:
        """Add what an earlier server has learned."""
        self._known[demand.model][demand.slot] = demand

    def note_request(self, model: str, at: float) -> ModelDemand | None:
        """Learn from a request. Returns what was learned; None if the slot of this day
        has already had a request.
        """
        day = int(at // _DAY_S)
        slot = int(at % _DAY_S // SLOT_S)
        before = self._known[model].get(slot)
        if before and before.day >= day:
            return None
        earlier_share = before.share_on(day) if before else 0.0
        share = NEWEST + (1 - NEWEST) * earlier_share
        demand = ModelDemand(model, slot, day, share)
        self._known[model][slot] = demand
        self._next.pop(model, None)
        return demand

    def next_demand(self, model: str, at: float) -> tuple[float, float] | None:
        """From when to when demand is next expected, which may have begun; None if none
        is expected within a day.
        """
        first = int(at // SLOT_S)
        if self._next.get(model, (-1, None))[0] != first:
            self._next[model] = first, self._expected_from(model, first)
        return self._next[model][1]

    def _expected_from(self, model: str, first: int) -> tuple[float, float] | None:
        times = [
            slot
            for slot in range(first, first + SLOTS)
            if self._is_expected(model, slot)
        ]
        if not times:
            return None
        end = times[0]
        while end in times:
            end += 1
        return times[0] * SLOT_S, end * SLOT_S

    def _is_expected(self, model: str, slot: int) -> bool:
        demand = self._known[model].get(slot % SLOTS)
        return demand is not None and demand.share_on(slot // SLOTS) >= EXPECTED
