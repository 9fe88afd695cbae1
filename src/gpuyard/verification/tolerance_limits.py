"""The limits of a class's tolerance, from what two honest executors differed by.

Nothing in them is guessed: an honest executor of the class answers series, the trusted
one follows its tokens, and what they differ by is the noise floor.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

from gpuyard.domain.errors import InvalidInputError
from gpuyard.verification.chance import least_share
from gpuyard.verification.fingerprints import PrintDifference, total
from gpuyard.verification.solver.engines.fingerprints import TOP
from gpuyard.verification.tolerance import Limits, error_of_one

LEEWAY_ONE = 1.5
LEEWAY_ALL = 1.2
FEWEST_RUNS = 5
# Log-probabilities are kept in 16 bits: near -8, that is rounding by up to 0.004.
LEAST_ERROR = 0.004
# What was never seen in so many is, nineteen times of twenty, rarer than 3 in so many.
_NEVER_SEEN = 3.0
# An honest answer may have more than its share by chance, as one of a thousand has.
_WORST_BY_CHANCE = math.log(1000)
# Limits from executors that differ by more would tell nobody from a cheater.
MOST_OTHERS = 0.5
PREFIX = "tolerance_"
"""How the names of a tolerance's ranges begin."""


def limits_from(runs: Sequence[Sequence[PrintDifference]]) -> Limits:
    """The limits from the answers of each run; InvalidInputError if they are too few.

    For one answer 1.5 times the least share that the worst of all answers can have by
    chance, so that a short one says little; for all together 1.2 times the worst run.
    """
    if len(runs) < FEWEST_RUNS:
        raise InvalidInputError.of(
            "runs",
            f"are {len(runs)}; the worst of few says little",
            f"compare at least {FEWEST_RUNS}",
        )
    ones = [one for run in runs for one in run]
    alls = [total(run) for run in runs]
    _require_same_model(alls)
    tokens = [(one.unlikely, one.tokens) for one in ones]
    ids = [(one.missing / TOP, one.tokens) for one in ones]
    return Limits(
        tokens_one=_share_of_one(tokens),
        tokens_all=_share_of_all([(one.unlikely, one.tokens) for one in alls]),
        ids_one=_share_of_one(ids),
        ids_all=_share_of_all([(one.missing / TOP, one.tokens) for one in alls]),
        logprobs_one=max(LEEWAY_ONE * max(map(error_of_one, ones)), LEAST_ERROR),
        logprobs_all=max(
            LEEWAY_ALL * max(one.logprob_error for one in alls), LEAST_ERROR
        ),
        false_ends_all=_share_of_all([(one.false_ends, one.answers) for one in alls]),
        rare_ends_all=_share_of_all([(one.rare_ends, one.answers) for one in alls]),
    )


def _require_same_model(runs: Sequence[PrintDifference]) -> None:
    """InvalidInputError if too little is common for limits that mean something."""
    if any(max(one.token_share, one.id_share) > MOST_OTHERS for one in runs):
        raise InvalidInputError.of(
            "--against",
            f"answers a series of which more than {MOST_OTHERS:.0%} is not the trusted"
            " executor's: it has another model, or an engine that draws in another way",
            "name an executor with the same model and kind of engine, whose answers you"
            " trust",
        )


Counts = Sequence[tuple[float, float]]
"""How often something happened, and of how many."""


def _share_of_one(counts: Counts) -> float:
    worst = max(least_share(count, of, _WORST_BY_CHANCE) for count, of in counts)
    happened = max(sum(count for count, _ in counts), _NEVER_SEEN)
    return LEEWAY_ONE * max(worst, happened / sum(of for _, of in counts))


def _share_of_all(counts: Counts) -> float:
    worst = max(count / of for count, of in counts)
    return max(LEEWAY_ALL * worst, _NEVER_SEEN / sum(of for _, of in counts))


def ranges_of(limits: Limits) -> dict[str, tuple[float, float]]:
    """The limits as ranges of a class, by name."""
    named = msgspec.structs.asdict(limits)
    return {f"{PREFIX}{name}": (0.0, limit) for name, limit in named.items()}


def required_limits(cls: str, ranges: Mapping[str, float]) -> Limits:
    """The limits among a class's calibrated ranges; InvalidInputError without them."""
    limits = limits_in(ranges)
    if limits is None:
        raise InvalidInputError.of(
            f"verification.tolerances.{cls}",
            "is set, and it is not measured how much honest answers differ",
            f"run `gpuyard verify calibrate --class {cls} --against EXECUTOR` with"
            " an executor whose answers you trust",
        )
    return limits


def limits_in(ranges: Mapping[str, float]) -> Limits | None:
    """The limits among a class's calibrated ranges; None before they are measured."""
    names = [f"{PREFIX}{name}" for name in Limits.__struct_fields__]
    if not all(name in ranges for name in names):
        return None
    return Limits(**{name.removeprefix(PREFIX): ranges[name] for name in names})
