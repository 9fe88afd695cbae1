"""Times as people write them: how long ago, a day, or a date."""

import re
import time
from datetime import UTC, datetime, timedelta, tzinfo

from gpuyard.domain import units
from gpuyard.domain.errors import InvalidInputError

_AGO = re.compile(
    r"(\d{1,6})\s*(second|minute|hour|day|week|month|year)s?\s+ago", re.IGNORECASE
)
_SECONDS = {"second": 1, "minute": 60, "hour": 3600}
_DAYS = {"day": 1, "week": 7}
_MONTHS = {"month": 1, "year": 12}


def moment(option: str, text: str, zone: tzinfo | None = None) -> float:
    """The time (UTC seconds) that `2h`, `7 days ago`, `yesterday` or a date means: in
    `zone`, else local, unless it says otherwise. InvalidInputError names the option.

    A number of days ago is the same time of day; `yesterday` is when that day began.
    """
    written = text.strip()
    try:
        return time.time() - units.seconds(written)
    except ValueError:
        pass
    try:
        found = _in_words(written.lower(), zone) or datetime.fromisoformat(written)
        if found.tzinfo is None:
            found = found.replace(tzinfo=zone)
        return found.timestamp()
    except (ValueError, OverflowError):
        raise InvalidInputError.of(
            option,
            f"{text!r} is no time",
            "write how long ago, such as 2h or '7 days ago', or a date such as"
            " 2026-11-25 or '2026-11-25 14:30'",
        ) from None


def _in_words(text: str, zone: tzinfo | None) -> datetime | None:
    """What `today`, `yesterday` and `3 weeks ago` mean; None for other words."""
    now = datetime.now(zone)
    if text == "now":
        return datetime.now(UTC)
    if text in ("today", "yesterday"):
        local = now.replace(tzinfo=None, hour=0, minute=0, second=0, microsecond=0)
        return local - timedelta(days=text == "yesterday")
    match = _AGO.fullmatch(text)
    if match is None:
        return None
    number = int(match[1])
    unit = match[2].lower()
    if unit in _SECONDS:
        return datetime.now(UTC) - timedelta(seconds=number * _SECONDS[unit])
    # The same time of day, even if the clocks have changed since.
    local = now.replace(tzinfo=None)
    if unit in _DAYS:
        return local - timedelta(days=number * _DAYS[unit])
    return _months_before(local, number * _MONTHS[unit])


def _months_before(at: datetime, months: int) -> datetime:
    """The same day some months before, or the last one of a shorter month."""
    count = at.year * 12 + at.month - 1 - months
    first = at.replace(year=count // 12, month=count % 12 + 1, day=1)
    following = (first + timedelta(days=32)).replace(day=1)
    days = (following - first).days
    return first.replace(day=min(at.day, days))
