"""Local times as moments: also those that come twice or never."""

from zoneinfo import ZoneInfo

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.local_times import in_zone, moment_in

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-12-01 09:00", 1_796_112_000.0),
        ("2026-06-01 09:00", 1_780_297_200.0),
        ("2026-12-01T09:00+09:00", 1_796_083_200.0),
        ("now", 5.0),
    ],
)
def test_a_time_of_a_zone_is_a_moment(text, moment):
    assert moment_in("begins", text, BERLIN, now=5.0) == moment
    if text[0] == "2" and "+" not in text:
        assert in_zone(moment, BERLIN).startswith(text)


@pytest.mark.parametrize(
    ("text", "problem", "choices"),
    [
        (
            "2026-10-25 02:30",
            "comes twice",
            "2026-10-25T02:30+02:00 or 2026-10-25T02:30+01:00",
        ),
        (
            "2026-03-29 02:30",
            "does not exist",
            "2026-03-29T01:30+01:00 or 2026-03-29T03:30+02:00",
        ),
    ],
)
def test_where_clocks_are_set_both_moments_are_named(text, problem, choices):
    with pytest.raises(InvalidInputError, match=problem) as caught:
        moment_in("begins", text, BERLIN, now=0.0)
    (fault,) = caught.value.faults
    assert (fault.field, fault.remedy) == ("begins", f"write {choices}")
    for choice in choices.split(" or "):
        assert moment_in("begins", choice, BERLIN, now=0.0) > 0


@pytest.mark.parametrize("text", ["tomorrow", "", "2026-13-01", "0001-01-01 00:00"])
def test_what_is_no_time_says_what_would_be(text):
    with pytest.raises(InvalidInputError, match=r"is no time.*2026-12-01 09:00"):
        moment_in("ends", text, BERLIN, now=0.0)
