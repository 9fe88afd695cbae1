"""The days, weeks and months of a time zone, as UTC seconds: pure functions.

A day may have 23 or 25 hours, when clocks change.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

DAY_S = 86_400
_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Stretch:
    """From `begin` on, clocks are `offset_s` seconds ahead of UTC."""

    begin: float
    offset_s: int


def stretches(begin: float, end: float, zone: ZoneInfo) -> list[Stretch]:
    """The offsets of the time zone from `begin` until `end`, in order."""
    found = [Stretch(begin, _offset_s(begin, zone))]
    at = begin
    while at < end:
        following = min(at + DAY_S, end)
        if _offset_s(following, zone) != found[-1].offset_s:
            change = _change_between(at, following, zone)
            found.append(Stretch(change, _offset_s(change, zone)))
        at = following
    return found


def _change_between(before: float, after: float, zone: ZoneInfo) -> float:
    """The first second after `before` with another offset."""
    old = _offset_s(before, zone)
    low = int(before)
    high = int(after) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if _offset_s(middle, zone) == old:
            low = middle
        else:
            high = middle
    return float(high)


def _offset_s(at: float, zone: ZoneInfo) -> int:
    offset = datetime.fromtimestamp(at, UTC).astimezone(zone).utcoffset()
    return int((offset or timedelta()).total_seconds())


def day_number(at: float, offset_s: int) -> int:
    """The local day as the number of days since 1970."""
    return int((at + offset_s) // DAY_S)


@lru_cache(maxsize=4096)
def day_name(number: int) -> str:
    """The date of a numbered day, such as 2026-11-01."""
    return (_EPOCH + timedelta(days=number)).isoformat()


@lru_cache(maxsize=4096)
def week_name(number: int) -> str:
    """The week of a numbered day as ISO 8601 calls it, such as 2026-W48. It begins on
    Monday, and belongs to the year that has most of its days.
    """
    week = (_EPOCH + timedelta(days=number)).isocalendar()
    return f"{week.year}-W{week.week:02}"


def day_pieces(
    begin: float, end: float, known: list[Stretch]
) -> list[tuple[int, float, float]]:
    """The days from `begin` until `end`: of each its number, and from when until when
    it is in there. `known` are the offsets from then on.
    """
    pieces: list[tuple[int, float, float]] = []
    bounds = [*(stretch.begin for stretch in known[1:]), float("inf")]
    at = begin
    for stretch, bound in zip(known, bounds, strict=True):
        while at < min(end, bound):
            number = day_number(at, stretch.offset_s)
            midnight = float((number + 1) * DAY_S - stretch.offset_s)
            until = min(midnight, bound, end)
            since = at
            if pieces and pieces[-1][0] == number:
                since = pieces.pop()[1]  # clocks changed on this day
            pieces.append((number, since, until))
            at = until
    return pieces


def month_bounds(year: int, month: int, zone: ZoneInfo) -> tuple[float, float]:
    """From when until when a month lasts."""
    following = (year + 1, 1) if month == 12 else (year, month + 1)
    first = datetime(year, month, 1, tzinfo=zone)
    after = datetime(*following, 1, tzinfo=zone)
    return first.timestamp(), after.timestamp()


def month_at(at: float, zone: ZoneInfo) -> tuple[float, float]:
    """From when until when the month lasts in which `at` is."""
    local = datetime.fromtimestamp(at, zone)
    return month_bounds(local.year, local.month, zone)


def day_at(at: float, zone: ZoneInfo) -> tuple[float, float]:
    """From when until when the day lasts in which `at` is."""
    today = datetime.fromtimestamp(at, zone).date()
    tomorrow = today + timedelta(days=1)
    return _midnight(today, zone), _midnight(tomorrow, zone)


def _midnight(day: date, zone: ZoneInfo) -> float:
    """The first moment of a day."""
    return datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()
