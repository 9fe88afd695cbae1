"""Deadlines as people write them."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from gpuyard.domain.deadlines import as_moment, deadline_of, from_now, in_words
from gpuyard.domain.errors import InvalidInputError

NOW = 1_764_600_000.5  # 2025-12-01 14:40 UTC
BERLIN = ZoneInfo("Europe/Berlin")


def moment(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("8h", 1_764_600_001 + 8 * 3600),
        ("1h30m", 1_764_600_001 + 5400),
        ("2025-12-02 18:00", moment(2025, 12, 2, 17)),
        ("2025-12-02T18:00Z", moment(2025, 12, 2, 18)),
        ("2025-12-02T18:00-05:00", moment(2025, 12, 2, 23)),
        ("2026-07-01 18:00", moment(2026, 7, 1, 16)),
    ],
)
def test_a_deadline_is_a_time_from_now_or_a_date_with_a_time(text, meant):
    assert deadline_of("deadline", text, BERLIN, NOW) == meant


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("soon", "'soon' is no date with a time"),
        # Its begin, or its end?
        ("2025-12-02", "'2025-12-02' is no date with a time"),
        ("25:00", "'25:00' is no time"),
        ("2026-03-29 02:30", "'2026-03-29 02:30' does not exist in Europe/Berlin"),
        ("2026-10-25 02:30", "'2026-10-25 02:30' comes twice in Europe/Berlin"),
    ],
)
def test_what_is_no_deadline_is_refused(text, fault):
    with pytest.raises(InvalidInputError) as caught:
        deadline_of("--deadline", text, BERLIN, NOW)
    (found,) = caught.value.faults
    assert (found.field, found.fault.startswith(fault)) == ("--deadline", True)


def test_only_durations_count_from_now():
    assert from_now("90", NOW) == 1_764_600_091
    for other in ("2025-12-02T18:00Z", 5.0, None, ["8h"]):
        assert from_now(other, NOW) == other


def test_a_date_time_with_its_zone_is_a_moment():
    assert as_moment("2025-12-02T18:00+01:00") == moment(2025, 12, 2, 17)
    assert as_moment(17.5) == 17.5


def test_a_deadline_is_told_in_utc():
    assert in_words(moment(2025, 12, 2, 17)) == "2025-12-02 17:00 UTC"
    assert in_words(moment(2025, 12, 2, 17, 0, 5)) == "2025-12-02 17:00:05 UTC"
