"""Local times: a date and a time of day in a time zone, as one moment."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from gpuyard.domain.errors import InvalidInputError, quoted

_RIGHT = "write one such as '2026-12-01 09:00'"


def moment_in(field: str, text: str, zone: ZoneInfo, now: float) -> float:
    """The moment (UTC seconds) that `2026-12-01 09:00` is in this zone; a time with an
    offset, such as `2026-12-01T09:00+01:00`, is in that; `now` is now.

    InvalidInputError names `field` if it is no time, and names both moments that could
    be meant if clocks are set just then: one that comes twice, or never.
    """
    written = text.strip()
    if written.lower() == "now":
        return now
    try:
        found = datetime.fromisoformat(written)
        if found.tzinfo is not None:
            return found.timestamp()
        earlier = _moment(found, zone, fold=0)
        later = _moment(found, zone, fold=1)
    except (ValueError, OverflowError):
        fault = f"{quoted(text)} is no time"
        raise InvalidInputError.of(field, fault, _RIGHT) from None
    if earlier == later:
        return earlier.timestamp()
    comes = earlier.astimezone(zone).replace(tzinfo=None) == found
    problem = "comes twice" if comes else "does not exist"
    both = sorted([earlier, later])
    choices = " or ".join(
        moment.astimezone(zone).isoformat(timespec="minutes") for moment in both
    )
    raise InvalidInputError.of(
        field,
        f"{quoted(text)} {problem} in {zone.key}, because clocks are set then",
        f"write {choices}",
    )


def _moment(found: datetime, zone: ZoneInfo, *, fold: int) -> datetime:
    return found.replace(tzinfo=zone, fold=fold).astimezone(UTC)


def in_zone(at: float, zone: ZoneInfo) -> str:
    """A moment (UTC seconds) as people of this zone write it, with its offset."""
    return datetime.fromtimestamp(at, zone).isoformat(" ", timespec="minutes")
