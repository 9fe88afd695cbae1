"""Times as people write them."""

import time
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from gpuyard.cli import moments
from gpuyard.cli.moments import moment
from gpuyard.cli.report_period import report_period
from gpuyard.domain.errors import InvalidInputError

BERLIN = ZoneInfo("Europe/Berlin")
# The Monday after clocks were set back in Berlin.
NOW = datetime(2026, 10, 26, 12, 30, tzinfo=BERLIN)


@pytest.fixture(autouse=True)
def at_noon(monkeypatch: pytest.MonkeyPatch) -> None:
    class Noon(datetime):
        @classmethod
        def now(cls, tz=None):
            return NOW.astimezone(tz).replace(tzinfo=tz)

    monkeypatch.setattr(moments, "datetime", Noon)
    monkeypatch.setattr(time, "time", NOW.timestamp)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", "2026-10-26T12:30+01:00"),
        ("2h", "2026-10-26T10:30+01:00"),
        ("90 minutes ago", "2026-10-26T11:00+01:00"),
        ("today", "2026-10-26T00:00+01:00"),
        ("yesterday", "2026-10-25T00:00+02:00"),
        # The same time of day, which is 49 hours ago.
        ("2 days ago", "2026-10-24T12:30+02:00"),
        ("1 week ago", "2026-10-19T12:30+02:00"),
        ("8 Months Ago", "2026-02-26T12:30+01:00"),
        ("2026-10-01", "2026-10-01T00:00+02:00"),
        ("2026-10-01T00:00Z", "2026-10-01T00:00+00:00"),
    ],
)
def test_a_time_is_that_of_the_zone(text, expected):
    found = datetime.fromtimestamp(moment("--from", text, BERLIN), UTC)
    assert found == datetime.fromisoformat(expected)


@pytest.mark.parametrize("text", ["", "soon", "3 moons ago", "2026-02-30"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(InvalidInputError, match="is no time"):
        moment("--from", text, BERLIN)


def test_a_month_ago_of_a_longer_month_is_its_last_day():
    begin = moments._months_before(datetime(2026, 3, 31, 8, tzinfo=UTC), 1)
    assert begin == datetime(2026, 2, 28, 8, tzinfo=UTC)


def test_a_month_is_that_of_the_zone():
    begin, end = report_period(None, None, "2026-12", "Europe/Berlin")
    assert datetime.fromtimestamp(begin, BERLIN).isoformat() == (
        "2026-12-01T00:00:00+01:00"
    )
    assert datetime.fromtimestamp(end, BERLIN).isoformat() == (
        "2027-01-01T00:00:00+01:00"
    )
