"""How long an attempt ran."""

import pytest

from gpuyard.domain.run_time import run_time_s


@pytest.mark.parametrize(
    ("started_at", "ended_at", "measured_s", "expected_s"),
    [
        (1_700_000_000.0, 1_700_007_200.0, 3.0, 3.0),
        (1_700_000_000.0, 1_700_000_004.0, None, 4.0),
        (3600.0, 0.0, None, 0.0),
        (None, 3600.0, None, 0.0),
    ],
    ids=["measured", "by wall clock", "a clock set back", "never started"],
)
def test_what_was_measured_counts(started_at, ended_at, measured_s, expected_s):
    assert run_time_s(started_at, ended_at, measured_s) == expected_s
