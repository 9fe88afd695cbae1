"""Trust in an executor, and the chance that checks find a cheater.

Trust is a Beta posterior over the chance that the next check is passed. Old evidence fades towards the prior; what an
executor earns is bounded, so that nobody saves up for a fraud; and the prior is low, so that a new name
is worth little.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

PRIOR = (1.0, 3.0)  # an executor that nobody has checked scores 0.25
FAILURE = 6.0  # one weighs as much as six passes
MOST_EVIDENCE = 60.0  # beyond the prior
HALF_LIFE_S = 14 * 86400.0
QUARANTINE_S = 4 * 3600.0
LONGEST_QUARANTINE_S = 30 * 86400.0


class Outcome(StrEnum):
    """How a check ended. Excused: shown to be at work for others. Blameless: our side or the trusted one failed."""

    PASSED = "passed"
    FAILED = "failed"
    EXCUSED = "excused"
    BLAMELESS = "blameless"


@dataclass(frozen=True, slots=True)
class Trust:
    """What checks have shown until `at` (UTC seconds): Beta(alpha, beta), the prior included."""

    alpha: float = PRIOR[0]
    beta: float = PRIOR[1]
    at: float = 0.0

    @property
    def score(self) -> float:
        """The expected chance, from 0 to 1, of passing the next check; at the time `at`."""
        return self.alpha / (self.alpha + self.beta)

    def faded(self, now: float) -> "Trust":
        """As it stands at `now`: evidence is halved each HALF_LIFE_S. A clock that was set back fades nothing."""
        return self._with(0.5 ** (max(0.0, now - self.at) / HALF_LIFE_S), max(now, self.at))

    def after(self, outcome: Outcome, now: float) -> "Trust":
        """With one more check. Excused and blameless ones say nothing of the executor."""
        old = self.faded(now)
        passed, failed = float(outcome is Outcome.PASSED), FAILURE * (outcome is Outcome.FAILED)
        trust = Trust(old.alpha + passed, old.beta + failed, old.at)
        evidence = trust.alpha + trust.beta - sum(PRIOR)
        return trust._with(min(1.0, MOST_EVIDENCE / evidence), old.at) if evidence > 0 else trust

    def _with(self, kept: float, at: float) -> "Trust":
        """With this part of what lies beyond the prior."""
        alpha, beta = PRIOR
        return Trust(alpha + (self.alpha - alpha) * kept, beta + (self.beta - beta) * kept, at)


def quarantine_s(repeats: int) -> float:
    """Seconds of quarantine after a failure when `repeats` others came before: four hours, doubled for each."""
    if repeats < 0:
        raise ValueError(f"repeats is {repeats}; it counts earlier failures from 0")
    return min(QUARANTINE_S * 2.0 ** min(repeats, 100), LONGEST_QUARANTINE_S)


def chance(strength: float, batches: int, lucky: float = 0.0) -> float:
    """The chance that a cheater is caught at least once in `batches`, each with one hidden prompt drawn evenly.

    `strength`: the part of each batch's prompts that it answers wrongly or not at all. `lucky`: how often such an
    answer is the right one all the same (a smaller model says many things like the larger one). Batches are
    independent, since each has a new prompt and seed: 1 − (1 − strength·(1 − lucky))ⁿ.
    """
    caught = _caught(strength, lucky)
    if batches < 0:
        raise ValueError(f"batches is {batches}; it is a count from 0")
    return float(batches > 0) if caught == 1 else -math.expm1(batches * math.log1p(-caught))


def expected_batches(strength: float, lucky: float = 0.0) -> float:
    """In which batch, on average, a cheater is first caught; infinite for one that gives right answers only."""
    caught = _caught(strength, lucky)
    return 1 / caught if caught else math.inf


def expected_s(strength: float, every_s: float, lucky: float = 0.0) -> float:
    """Seconds until then, when a batch comes each `every_s`, the first one after as long."""
    return expected_batches(strength, lucky) * every_s


def batches_for(certainty: float, strength: float, lucky: float = 0.0) -> int:
    """How many batches it takes to catch a cheater with this chance."""
    caught = _caught(strength, lucky)
    if not 0 <= certainty < 1 or not caught:
        raise ValueError(f"no number of batches catches a part of {caught:g} with a chance of {certainty:g}")
    return math.ceil(math.log1p(-certainty) / math.log1p(-caught)) if caught < 1 else int(certainty > 0)


def catches(strength: float, batches: int, certainty: float = 0.999, lucky: float = 0.0) -> tuple[int, int]:
    """The fewest and most of `batches` that catch such a cheater: a binomial interval with equal tails.

    What lies outside is not explained by chance: checks that catch too little, or blame too much.
    """
    caught, tail = _caught(strength, lucky), (1 - certainty) / 2
    low, below = -1, 0.0
    while below <= tail:
        low += 1
        below += _exactly(low, batches, caught)
    high, above = batches + 1, 0.0
    while above <= tail:
        high -= 1
        above += _exactly(high, batches, caught)
    return low, high


def _caught(strength: float, lucky: float) -> float:
    """In one batch."""
    for name, part in (("strength", strength), ("lucky", lucky)):
        if not 0 <= part <= 1:
            raise ValueError(f"{name} is {part}; it is a part from 0 to 1")
    return strength * (1 - lucky)


def _exactly(count: int, batches: int, caught: float) -> float:
    """The binomial chance, through logarithms: with 600 batches the coefficients are beyond a float."""
    if caught in (0, 1):
        return float(count == batches * caught)
    ways = math.lgamma(batches + 1) - math.lgamma(count + 1) - math.lgamma(batches - count + 1)
    return math.exp(ways + count * math.log(caught) + (batches - count) * math.log1p(-caught))
