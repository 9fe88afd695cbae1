"""A short soak on each database; `make soak` is the long one."""

import pytest

from tests.soak.check import slope_mb_per_minute
from tests.soak.soak import soak


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_short_soak_keeps_every_promise(database: str) -> None:
    result = soak(
        seed=20261122,
        rounds=2,
        storm_s=0,
        flat_s=0,
        database=database,
        most_waiting=20,
        real_python=False,
    )
    assert not result.faults, f"{result}: {result.faults}"
    assert result.jobs >= result.rounds == 2


def test_growth_is_told_from_rest() -> None:
    assert slope_mb_per_minute(
        [(t, 100.0 + t / 6) for t in range(60)]
    ) == pytest.approx(10.0)
    assert slope_mb_per_minute(
        [(t, 100.0 + t % 2) for t in range(600)]
    ) == pytest.approx(0.0, abs=0.05)
