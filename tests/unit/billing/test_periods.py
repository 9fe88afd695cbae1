"""Days and months of time zones, also when clocks change."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from gpuyard.billing.periods import (
    day_at,
    day_name,
    day_pieces,
    month_at,
    stretches,
)

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str, zone: ZoneInfo = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


@pytest.mark.parametrize(
    ("zone", "begin", "hours"),
    [
        ("Europe/Berlin", "2026-03-28", [24, 23, 24]),
        ("Europe/Berlin", "2026-10-24", [24, 25, 24]),
        ("Asia/Kolkata", "2026-10-24", [24, 24, 24]),
        # Clocks change at midnight: this day begins at one o'clock.
        ("America/Havana", "2026-03-07", [24, 23, 24]),
        ("Australia/Lord_Howe", "2026-10-03", [24, 23.5, 24]),
    ],
)
def test_a_day_lasts_from_midnight_to_midnight(zone, begin, hours):
    place = ZoneInfo(zone)
    start = at(begin, place)
    end = start + sum(hours) * 3600
    pieces = day_pieces(start, end, stretches(start, end, place))
    assert [(until - since) / 3600 for _, since, until in pieces] == hours
    first = datetime.fromisoformat(begin).date().toordinal()
    names = [day_name(number) for number, _, _ in pieces]
    assert names == [
        datetime.fromordinal(first + n).date().isoformat() for n in range(3)
    ]
    # The days follow one another without a gap.
    assert [since for _, since, _ in pieces[1:]] == [u for _, _, u in pieces[:-1]]
    assert day_at(start + 1, place) == pieces[0][1:]


def test_a_month_has_an_hour_more_when_clocks_are_set_back():
    begin, end = month_at(at("2026-10-25 02:30"), BERLIN)
    assert (begin, end) == (at("2026-10-01"), at("2026-11-01"))
    assert (end - begin) / 3600 == 31 * 24 + 1
    assert month_at(at("2026-12-31"), BERLIN)[1] == at("2027-01-01")


def test_a_day_that_a_zone_left_out_has_no_piece():
    apia = ZoneInfo("Pacific/Apia")
    begin = at("2011-12-29", apia)
    pieces = day_pieces(
        begin, begin + 2 * 86400, stretches(begin, begin + 2 * 86400, apia)
    )
    assert [day_name(number) for number, _, _ in pieces] == ["2011-12-29", "2011-12-31"]


def test_the_change_is_found_to_the_second():
    change = datetime(2026, 10, 25, 1, tzinfo=UTC).timestamp()
    found = stretches(change - 5 * 86400 + 0.5, change + 86400, BERLIN)
    assert [each.offset_s for each in found] == [7200, 3600]
    assert found[1].begin == change
