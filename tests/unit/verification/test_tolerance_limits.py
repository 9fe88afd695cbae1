"""Limits of a tolerance: honest executors stay within them, and a short answer in the
calibration gives nobody room.
"""

import math
from collections.abc import Sequence
from random import Random

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.verification.chance import least_share, surprise
from gpuyard.verification.fingerprints import PrintDifference, total
from gpuyard.verification.tolerance import Limits, all_are_right, one_is_right
from gpuyard.verification.tolerance_limits import (
    LEAST_ERROR,
    limits_from,
    limits_in,
    ranges_of,
)

RUNS = 5
PROMPTS = 60


def happened(chance: Random, count: int, share: float) -> int:
    """How often something happens by chance, in so many times."""
    return sum(chance.random() < share for _ in range(count))


def honest_run(chance: Random, share: float, ends: float) -> list[PrintDifference]:
    """The answers of an honest executor: of its tokens this share differs by rounding,
    and of its answers this share ends by rounding.
    """
    found: list[PrintDifference] = []
    for _ in range(PROMPTS):
        tokens = chance.choice((1, 3, 12, 40, 120))
        wrong = happened(chance, tokens, share)
        missing = happened(chance, tokens, share / 2)
        spread = chance.gauss(1, 0.5 / math.sqrt(tokens))
        error = 0.01 * (5 * tokens - missing) * abs(spread)
        false_ends = happened(chance, 1, ends)
        found.append(
            PrintDifference(
                tokens, wrong, 5 * tokens, missing, error, false_ends=false_ends
            )
        )
    return found


def passes(run: Sequence[PrintDifference], limits: Limits) -> bool:
    return all(one_is_right(one, limits) for one in run) and all_are_right(
        total(run), limits
    )


@pytest.mark.parametrize(("share", "ends"), [(0.001, 0.0), (0.03, 0.01), (0.2, 0.05)])
def test_many_honest_runs_pass_and_each_that_cuts_all_answers_fails(
    share: float, ends: float
) -> None:
    chance = Random(f"{share} {ends}")
    limits = [
        limits_from([honest_run(chance, share, ends) for _ in range(RUNS)])
        for _ in range(4)
    ]
    runs = [honest_run(chance, share, ends) for _ in range(40)]
    refused = sum(not passes(run, one) for run in runs for one in limits)
    assert refused == 0
    for one in limits:
        together = total(runs[0])
        cut = PrintDifference(
            together.tokens,
            together.unlikely,
            together.ids,
            together.missing,
            together.error,
            together.answers,
            false_ends=PROMPTS,
        )
        assert not all_are_right(cut, one)


def long_run(wrong: int = 2) -> list[PrintDifference]:
    return [PrintDifference(200, wrong, 1000, 5, 9.95) for _ in range(PROMPTS)]


def test_a_short_answer_in_the_calibration_gives_nobody_room() -> None:
    """Its one token is another, and so are all of the likeliest but one."""
    short = PrintDifference(1, 1, 5, 4, 0.2)
    without = limits_from([long_run()] * RUNS)
    with_it = limits_from([[*long_run(), short]] * RUNS)
    for name in ("tokens_one", "ids_one", "logprobs_one", "tokens_all", "ids_all"):
        assert getattr(with_it, name) <= 1.05 * getattr(without, name), name
    cheater = PrintDifference(200, 30, 1000, 5, 9.95)
    assert not one_is_right(cheater, with_it)
    assert one_is_right(short, with_it)


def test_limits_follow_from_what_was_measured() -> None:
    run = [PrintDifference(100, 2, 500, 5, 4.95), PrintDifference(100, 0, 500, 0, 0.0)]
    found = limits_from([run] * RUNS)
    assert found.tokens_one == pytest.approx(1.5 * 0.01)
    assert found.tokens_all == pytest.approx(1.2 * 0.01)
    assert found.ids_all == pytest.approx(1.2 * 0.005)
    assert found.logprobs_one == pytest.approx(1.5 * 0.01)
    assert found.logprobs_all == pytest.approx(1.2 * 4.95 / 995)
    assert found.false_ends_all == pytest.approx(3 / 10), "never seen in ten answers"
    equal = limits_from([[PrintDifference(10, 0, 50, 0, 0.0)]] * RUNS)
    assert equal.logprobs_all == LEAST_ERROR
    ranges = {name: high for name, (_, high) in ranges_of(found).items()}
    assert limits_in(ranges) == found
    assert limits_in({}) is None
    with pytest.raises(InvalidInputError, match="compare at least 5"):
        limits_from([run] * 4)


def test_what_no_honest_answer_did_may_still_happen_once() -> None:
    limits = limits_from([[PrintDifference(200, 0, 1000, 0, 1.0)] * PROMPTS] * RUNS)
    odd = PrintDifference(200, 1, 1000, 1, 1.0, false_ends=1)
    assert one_is_right(odd, limits)
    rest = [PrintDifference(200, 0, 1000, 0, 1.0)] * (PROMPTS - 1)
    assert all_are_right(total([odd, *rest]), limits)
    assert not all_are_right(total([odd] * PROMPTS), limits)


@pytest.mark.parametrize(
    "other",
    [PrintDifference(10, 10, 50, 50, 0.0), PrintDifference(100, 60, 500, 5, 5.0)],
    ids=["model", "draws"],
)
def test_who_has_too_little_in_common_sets_no_limits(other: PrintDifference) -> None:
    with pytest.raises(InvalidInputError, match="it has another model"):
        limits_from([[other]] * RUNS)


def test_chance_explains_one_of_one_and_not_fifty_of_a_hundred() -> None:
    assert surprise(1, 1, 0.01) == pytest.approx(math.log(100))
    assert surprise(50, 100, 0.01) > 100
    assert surprise(1, 100, 0.01) == 0
    assert surprise(1, 10, 0.0) == math.inf
    assert least_share(0, 10, 5.0) == 0
    assert least_share(1, 1, 5.0) == pytest.approx(math.exp(-5))
    assert least_share(50, 100, 5.0) > 0.3


@pytest.mark.parametrize(("of", "share"), [(8, 0.1), (60, 0.02), (200, 0.2)])
def test_the_bound_holds_for_the_chances_of_a_binomial_count(
    of: int, share: float
) -> None:
    chances = [
        math.comb(of, count) * share**count * (1 - share) ** (of - count)
        for count in range(of + 1)
    ]
    for count in range(of + 1):
        assert sum(chances[count:]) <= math.exp(-surprise(count, of, share)) + 1e-12
