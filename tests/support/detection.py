"""The chance that checks find a cheater, by the formula of docs/verification.md."""

import math


def chance(strength: float, batches: int, lucky: float = 0.0) -> float:
    """The chance that a cheater is caught at least once in `batches`, each with one
    hidden prompt drawn evenly.

    `strength`: the part of each batch's prompts that it answers wrongly or not at all.
    `lucky`: how often such an answer is the right one all the same (a smaller model
    says many things like the larger one). Batches are independent, since each has a new
    prompt and seed: 1 − (1 − strength·(1 − lucky))ⁿ.
    """
    caught = _caught(strength, lucky)
    if batches < 0:
        raise ValueError(f"batches is {batches}; it is a count from 0")
    return (
        float(batches > 0)
        if caught == 1
        else -math.expm1(batches * math.log1p(-caught))
    )


def expected_batches(strength: float, lucky: float = 0.0) -> float:
    """In which batch, on average, a cheater is first caught; infinite for one that
    gives right answers only.
    """
    caught = _caught(strength, lucky)
    return 1 / caught if caught else math.inf


def batches_for(certainty: float, strength: float, lucky: float = 0.0) -> int:
    """How many batches it takes to catch a cheater with this chance."""
    caught = _caught(strength, lucky)
    if not 0 <= certainty < 1 or not caught:
        raise ValueError(
            f"no number of batches catches a part of {caught:g} with a chance of"
            f" {certainty:g}"
        )
    return (
        math.ceil(math.log1p(-certainty) / math.log1p(-caught))
        if caught < 1
        else int(certainty > 0)
    )


def catches(
    strength: float, batches: int, certainty: float = 0.999, lucky: float = 0.0
) -> tuple[int, int]:
    """The fewest and most of `batches` that catch such a cheater: a binomial interval
    with equal tails.

    What lies outside is not explained by chance: checks that catch too little, or blame
    too much.
    """
    caught = _caught(strength, lucky)
    tail = (1 - certainty) / 2
    low = -1
    below = 0.0
    while below <= tail:
        low += 1
        below += _exactly(low, batches, caught)
    high = batches + 1
    above = 0.0
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
    """The binomial chance, through logarithms: with 600 batches the coefficients are
    beyond a float.
    """
    if caught in (0, 1):
        return float(count == batches * caught)
    ways = (
        math.lgamma(batches + 1)
        - math.lgamma(count + 1)
        - math.lgamma(batches - count + 1)
    )
    return math.exp(
        ways + count * math.log(caught) + (batches - count) * math.log1p(-caught)
    )
