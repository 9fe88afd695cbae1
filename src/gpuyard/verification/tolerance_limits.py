"""The limits of a class's tolerance, from what two honest executors differed by.

Nothing in them is guessed: an honest executor of the class answers series, the trusted
one follows its tokens, and what they differ by is the noise floor.
"""

from collections.abc import Mapping, Sequence

import msgspec

from gpuyard.domain.errors import InvalidInputError
from gpuyard.verification.fingerprints import PrintDifference, total
from gpuyard.verification.tolerance import Limits

# One answer is more by chance than all together, so its worst counts for more.
LEEWAY_ONE = 1.5
LEEWAY_ALL = 1.2
FEWEST_RUNS = 5
# Log-probabilities are kept in 16 bits: near -8, that is rounding by up to 0.004.
LEAST_ERROR = 0.004
_NAME = "tolerance_"


def limits_from(runs: Sequence[Sequence[PrintDifference]]) -> Limits:
    """The limits from the answers of each run; InvalidInputError if they are too few.

    For one answer 1.5 times the worst of all answers, for all together 1.2 times the
    worst run.
    """
    if len(runs) < FEWEST_RUNS:
        raise InvalidInputError.of(
            "runs",
            f"are {len(runs)}; the worst of few says little",
            f"compare at least {FEWEST_RUNS}",
        )
    ones = [one for run in runs for one in run]
    alls = [total(run) for run in runs]
    return Limits(
        tokens_one=LEEWAY_ONE * max(one.token_share for one in ones),
        tokens_all=LEEWAY_ALL * max(one.token_share for one in alls),
        ids_one=LEEWAY_ONE * max(one.id_share for one in ones),
        ids_all=LEEWAY_ALL * max(one.id_share for one in alls),
        logprobs_one=max(LEEWAY_ONE * max(map(_error, ones)), LEAST_ERROR),
        logprobs_all=max(LEEWAY_ALL * max(map(_error, alls)), LEAST_ERROR),
    )


def _error(one: PrintDifference) -> float:
    """The mean difference; InvalidInputError if nothing at all is common."""
    if one.missing == one.ids:
        raise InvalidInputError.of(
            "--against",
            "has an answer of which no likeliest token is the trusted executor's: it"
            " has another model",
            "name an executor with the same model, whose answers you trust",
        )
    return one.logprob_error


def ranges_of(limits: Limits) -> dict[str, tuple[float, float]]:
    """The limits as ranges of a class, by name."""
    named = msgspec.structs.asdict(limits)
    return {f"{_NAME}{name}": (0.0, limit) for name, limit in named.items()}


def limits_in(ranges: Mapping[str, float]) -> Limits | None:
    """The limits among a class's calibrated ranges; None before they are measured."""
    names = [f"{_NAME}{name}" for name in Limits.__struct_fields__]
    if not all(name in ranges for name in names):
        return None
    return Limits(**{name.removeprefix(_NAME): ranges[name] for name in names})
