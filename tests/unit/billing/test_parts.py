"""Parts of a cost: whatever the cuts, they add up."""

import itertools
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from gpuyard.billing.parts import amount, micros, part, seconds_within
from gpuyard.domain.rounding import in_places

SECONDS = st.floats(0, 1e7)


@given(
    st.integers(0, 10**12),
    SECONDS,
    SECONDS,
    st.lists(SECONDS, max_size=8),
    st.integers(0, 8),
)
def test_parts_add_up_whatever_the_cuts(total, began, ran_s, cuts, coarse):
    bounds = sorted([-1.0, 3e7, *cuts])
    fine = [part(total, began, ran_s, a, b) for a, b in itertools.pairwise(bounds)]
    assert min(fine) >= 0
    assert sum(fine) == total
    # Fewer cuts give the sums of the same parts.
    middle = min(coarse, len(bounds) - 1)
    before = part(total, began, ran_s, bounds[0], bounds[middle])
    assert before == sum(fine[:middle])


def test_a_part_follows_its_seconds():
    assert part(1000, 100.0, 100.0, 0.0, 150.0) == 500
    assert part(1000, 100.0, 100.0, 150.0, 160.0) == 100
    assert seconds_within(100.0, 100.0, 150.0, 160.0) == 10.0
    # Without a second that could be cut, all of it is where it began.
    assert part(1000, 100.0, 0.0, 100.0, 101.0) == 1000
    assert part(1000, 100.0, 0.0, 0.0, 100.0) == 0


def test_millionths_and_back_lose_nothing():
    assert micros(Decimal("12.345678")) == 12_345_678
    assert str(amount(12_345_678)) == "12.345678"
    assert str(amount(0)) == "0.000000"


@given(st.lists(st.decimals(0, 10**6, places=6), max_size=20), st.sampled_from([0, 2]))
def test_rounded_amounts_add_up_to_the_rounded_sum(amounts, places):
    rounded = in_places(amounts, places)
    unit = Decimal(1).scaleb(-places)
    assert sum(rounded, Decimal(0)) == sum(amounts, Decimal(0)).quantize(unit)
    assert all(
        abs(shown - exact) < unit for shown, exact in zip(rounded, amounts, strict=True)
    )
