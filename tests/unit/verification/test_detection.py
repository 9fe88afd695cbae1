"""The formula behind the table of chances in docs/verification.md."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.detection import batches_for, catches, chance, expected_batches

PARTS = st.floats(0, 1)


def simulated(wrong: int, prompts: int, batches: int, seed: int) -> int:
    """In how many batches the hidden prompt is one of those that the cheater answers
    wrongly.
    """
    dice = random.Random(seed)
    found = 0
    for _ in range(batches):
        spoiled = set(dice.sample(range(prompts), wrong))
        found += dice.randrange(prompts) in spoiled
    return found


@pytest.mark.parametrize("wrong", [1, 3, 6, 11])
def test_a_simulated_cheater_is_caught_as_often_as_the_theory_says(wrong: int) -> None:
    low, high = catches(wrong / 12, 600)
    assert low <= simulated(wrong, 12, 600, seed=wrong) <= high


def test_the_interval_tells_a_cheater_from_one_of_another_strength() -> None:
    low, high = catches(3 / 12, 600)
    assert not low <= simulated(5, 12, 600, seed=1) <= high
    assert not low <= simulated(1, 12, 600, seed=1) <= high


@pytest.mark.parametrize(
    ("strength", "batches"), [(0.25, 8), (1 / 12, 20), (0.5, 3), (0.02, 60)]
)
def test_the_chance_is_that_of_simulated_series_of_batches(
    strength: float, batches: int
) -> None:
    dice = random.Random(batches)
    tries = 4000
    caught = sum(
        any(dice.random() < strength for _ in range(batches)) for _ in range(tries)
    )
    low, high = catches(chance(strength, batches), tries)
    assert low <= caught <= high


def test_the_expected_batch_of_detection_is_that_of_simulations() -> None:
    dice = random.Random(7)
    tries = 4000
    strength = 0.2
    total = 0
    for _ in range(tries):
        total += 1
        while dice.random() >= strength:
            total += 1
    # The waits' variance is (1 − p)/p²; 3.29 deviations of the mean are 99.9 %.
    slack = 3.29 * math.sqrt((1 - strength) / strength**2 / tries)
    assert abs(total / tries - expected_batches(strength)) < slack


def test_the_interval_holds_what_it_says_and_no_more() -> None:
    for strength, batches in ((0.25, 600), (1 / 12, 600), (0.5, 10), (0.9, 40)):
        low, high = catches(strength, batches)
        chances = [
            math.comb(batches, k) * strength**k * (1 - strength) ** (batches - k)
            for k in range(batches + 1)
        ]
        assert sum(chances[low : high + 1]) >= 0.999
        assert sum(chances[:low]) <= 0.0005 < sum(chances[: low + 1])
        assert sum(chances[high + 1 :]) <= 0.0005 < sum(chances[high:])


def test_the_ends_of_the_scale() -> None:
    assert (
        chance(0, 1000) == 0
        and chance(1, 1) == 1
        and chance(1, 0) == chance(0.5, 0) == 0
    )
    assert expected_batches(0) == math.inf and expected_batches(1) == 1
    assert catches(0, 600) == (0, 0) and catches(1, 600) == (600, 600)
    assert chance(1e-9, 10**9) == pytest.approx(1 - math.exp(-1))


@given(PARTS, st.integers(0, 1000), PARTS)
def test_luck_is_weakness(strength: float, batches: int, lucky: float) -> None:
    assert (
        chance(strength, batches, lucky)
        == chance(strength * (1 - lucky), batches)
        <= chance(strength, batches)
    )


@given(st.floats(0, 0.9999), st.floats(0.001, 1))
def test_so_many_batches_are_enough_and_one_less_is_not(
    certainty: float, strength: float
) -> None:
    batches = batches_for(certainty, strength)
    assert chance(strength, batches) >= certainty - 1e-9
    assert batches == 0 or chance(strength, batches - 1) < certainty + 1e-9


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan])
def test_what_is_no_part_is_refused_by_name(bad: float) -> None:
    with pytest.raises(ValueError, match=r"strength is .*a part from 0 to 1"):
        chance(bad, 1)
    with pytest.raises(ValueError, match=r"lucky is .*a part from 0 to 1"):
        expected_batches(0.5, bad)
    with pytest.raises(ValueError, match="batches is -1"):
        chance(0.5, -1)
    with pytest.raises(ValueError, match="no number of batches"):
        batches_for(0.9, 0)
