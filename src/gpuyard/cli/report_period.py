"""The period that a report is about, from the options of the command."""

import re
from datetime import datetime, tzinfo
from zoneinfo import ZoneInfo

from gpuyard.cli.moments import moment
from gpuyard.domain.errors import InvalidInputError

_MONTH = re.compile(r"(\d{4})-(\d{1,2})")


def report_period(
    begin: str | None, end: str | None, month: str | None, timezone: str | None
) -> tuple[float | None, float | None]:
    """From when until when (UTC seconds); None: the server's own default. Dates are
    those of the time zone, else of this machine.
    """
    zone = _zone(timezone)
    if month is not None:
        if begin or end:
            raise InvalidInputError.of(
                "--month",
                "does not go with --from and --to",
                "give the one or the other",
            )
        return _month(month, zone)
    since = moment("--from", begin, zone) if begin else _first_of_month(zone)
    return since, moment("--to", end, zone) if end else None


def _zone(name: str | None) -> ZoneInfo | None:
    if name is None:
        return None
    from gpuyard.domain.cron import time_zone

    try:
        return time_zone(name)
    except ValueError as error:
        fault, _, remedy = str(error).rpartition("; ")
        raise InvalidInputError.of("--timezone", fault, remedy) from None


def _month(text: str, zone: tzinfo | None) -> tuple[float, float]:
    match = _MONTH.fullmatch(text.strip())
    number = int(match[2]) if match else 0
    if match is None or not 1 <= number <= 12 or not 1970 <= int(match[1]) < 9999:
        raise InvalidInputError.of(
            "--month", f"{text!r} is no month", "write one such as 2026-10"
        )
    year = int(match[1])
    first = datetime(year, number, 1, tzinfo=zone)
    following = datetime(year + number // 12, number % 12 + 1, 1, tzinfo=zone)
    return first.timestamp(), following.timestamp()


def _first_of_month(zone: tzinfo | None) -> float:
    now = datetime.now(zone)
    return datetime(now.year, now.month, 1, tzinfo=zone).timestamp()
