"""Cron expressions: at which moments a schedule is due, in its time zone.

When clocks are set forward, a time that does not exist comes at the first moment after
it; when they are set back, a time that comes twice counts once. An expression with `*`
as its hour means every hour that passes, and not a time of day.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from gpuyard.domain.errors import quoted

NICKNAMES: Mapping[str, str] = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EXAMPLE = "'0 3 * * *' for three o'clock every night"


@dataclass(frozen=True, slots=True)
class _Field:
    """One of the five fields: its name, and what may stand in it."""

    name: str
    values: str


_FIELDS = (
    _Field("minute", "0 to 59, such as 30, 0,30 or */15"),
    _Field("hour", "0 to 23, such as 3, 9-17 or */6"),
    _Field("day of the month", "1 to 31, such as 1, 1,15 or L for the last"),
    _Field("month", "1 to 12 or JAN to DEC, such as 6, 1-3 or */3"),
    _Field("day of the week", "0 to 7 or SUN to SAT, such as 1, MON-FRI or SAT,SUN"),
)


def five_fields(expression: str) -> str:
    """The expression in five fields, which a nickname such as `@daily` stands for.

    ValueError names the field that is wrong, and says what would be right.
    """
    fields = expression.split()
    if len(fields) == 1 and fields[0].startswith("@"):
        return _named(fields[0].lower())
    if len(fields) != len(_FIELDS):
        raise ValueError(
            f"{quoted(expression)} has {len(fields)} fields; write five (minute, hour,"
            f" day of the month, month, day of the week), such as {_EXAMPLE}"
        )
    for position, word in enumerate(fields):
        _check_field(position, word)
    try:
        CronSim(" ".join(fields), datetime(2000, 1, 1))  # noqa: DTZ001 - only to read it
    except CronSimError:
        fault = f"{quoted(expression)} never comes, no such month has that day"
        raise ValueError(f"{fault}; write, for example, {_EXAMPLE}") from None
    return " ".join(fields)


def _by_wall_clock(fields: str) -> str:
    """The same fields so that CronSim takes them for times of day, except where they
    mean every hour: it takes what begins with `*` for an interval.
    """
    minute, hour, *rest = fields.split()
    if hour == "*":
        return fields
    minute = minute.replace("*", "0-59", 1) if minute[0] == "*" else minute
    hour = hour.replace("*", "0-23", 1) if hour[0] == "*" else hour
    return " ".join([minute, hour, *rest])


def _named(text: str) -> str:
    if text not in NICKNAMES:
        known = ", ".join(NICKNAMES)
        raise ValueError(
            f"{quoted(text)} is no name of a time; use {known}, or five fields such as"
            f" {_EXAMPLE}"
        )
    return NICKNAMES[text]


def _check_field(position: int, word: str) -> None:
    """ValueError if this word cannot stand in the field at `position`."""
    words = ["*"] * len(_FIELDS)
    words[position] = word
    try:
        CronSim(" ".join(words), datetime(2000, 1, 1))  # noqa: DTZ001 - only to read it
    except CronSimError:
        field = _FIELDS[position]
        raise ValueError(
            f"its {field.name} is {quoted(word)}; write {field.values}, or * for any"
        ) from None


@cache
def time_zone(name: str) -> ZoneInfo:
    """The time zone of this name, such as Europe/Berlin; ValueError."""
    try:
        return ZoneInfo(name)
    # By the name, it is no key, no path below the folder of zones, or a folder there.
    except (KeyError, ValueError, OSError):
        known = {zone.lower(): zone for zone in available_timezones()}
        near = get_close_matches(name.lower(), known, 1)
        hint = "write one such as Europe/Berlin"
        if near:
            hint = f"did you mean {known[near[0]]}?"
        raise ValueError(f"there is no time zone {quoted(name)}; {hint}") from None


@dataclass(frozen=True, slots=True)
class CronTimes:
    """The moments (UTC seconds) of a valid expression in a time zone that exists."""

    expression: str
    timezone: str

    def next_after(self, moment: float) -> float | None:
        """The first one after `moment`; None if there is none in fifty years."""
        for found in CronSim(self._fields(), self._local(moment)):
            # In an hour that comes twice, the iterator begins with its first time.
            if found.timestamp() > moment:
                return found.timestamp()
        return None

    def latest_until(self, moment: float) -> float | None:
        """The last one that is not after `moment`; None if there is none in fifty
        years.
        """
        start = self._local(int(moment) + 1)
        for found in CronSim(self._fields(), start, reverse=True):
            latest = found.timestamp()
            if latest <= moment:
                break
        else:
            return None
        # In an hour that comes twice, looking back may miss times of its first half.
        following = self.next_after(latest)
        while following is not None and following <= moment:
            latest = following
            following = self.next_after(latest)
        return latest

    def _fields(self) -> str:
        return _by_wall_clock(five_fields(self.expression))

    def _local(self, moment: float) -> datetime:
        return datetime.fromtimestamp(moment, time_zone(self.timezone))
