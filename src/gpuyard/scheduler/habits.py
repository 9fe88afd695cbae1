"""Habits: at what time of day models are asked for.

The day has 96 slots of a quarter of an hour (UTC). Of each is known on what share of the days it saw a request, the
newest days counting most. A model is expected in slots with a share of at least `EXPECTED`: from the third day on.
"""

from collections import defaultdict
from dataclasses import dataclass

SLOT_S = 900.0
SLOTS = 96
_DAY_S = SLOT_S * SLOTS
NEWEST = 0.15
"""What today counts; each day before counts so much less than the one after it."""
EXPECTED = 0.35


@dataclass(frozen=True, slots=True)
class Habit:
    """On `day` (since 1970) the model was last asked for in `slot`; `share`: of days on which it was, by then."""

    model: str
    slot: int
    day: int
    share: float

    def share_on(self, day: int) -> float:
        """By the beginning of a later day, on none of those between was it asked."""
        return self.share * (1 - NEWEST) ** max(day - self.day - 1, 0)


class Habits:
    """All models'. Times are UTC seconds."""

    def __init__(self) -> None:
        self._known: dict[str, dict[int, Habit]] = defaultdict(dict)
        self._next: dict[str, tuple[int, tuple[float, float] | None]] = {}  # by model, as it was in that slot

    def recall(self, habit: Habit) -> None:
        """What was learned before."""
        self._known[habit.model][habit.slot] = habit

    def asked(self, model: str, at: float) -> Habit | None:
        """Somebody asked; what that teaches, unless somebody else did in this slot of today."""
        day, slot = int(at // _DAY_S), int(at % _DAY_S // SLOT_S)
        before = self._known[model].get(slot)
        if before and before.day >= day:
            return None
        share = NEWEST + (1 - NEWEST) * (before.share_on(day) if before else 0.0)
        habit = self._known[model][slot] = Habit(model, slot, day, share)
        self._next.pop(model, None)
        return habit

    def expected(self, model: str, at: float) -> tuple[float, float] | None:
        """From when until when the model is next expected, if within a day; that may have begun."""
        first = int(at // SLOT_S)
        if self._next.get(model, (-1, None))[0] != first:
            self._next[model] = first, self._expected_from(model, first)
        return self._next[model][1]

    def _expected_from(self, model: str, first: int) -> tuple[float, float] | None:
        times = [slot for slot in range(first, first + SLOTS) if self._is_expected(model, slot)]
        if not times:
            return None
        end = times[0]
        while end in times:
            end += 1
        return times[0] * SLOT_S, end * SLOT_S

    def _is_expected(self, model: str, slot: int) -> bool:
        habit = self._known[model].get(slot % SLOTS)
        return habit is not None and habit.share_on(slot // SLOTS) >= EXPECTED
