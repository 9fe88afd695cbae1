"""Deadlines: the moments by which jobs should have ended, as people write them."""

import math
from datetime import UTC, datetime
from typing import Any, cast
from zoneinfo import ZoneInfo

from gpuyard.domain import units
from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.domain.local_times import moment_in

LATEST = datetime(2100, 1, 1, tzinfo=UTC).timestamp()
"""No deadline is later. Who gives milliseconds means a time long after it."""
_IS_PAST = ", which is past"
_RIGHT = "write a time from now such as 8h, or a date with a time: '2026-12-01 18:00'"


def as_moment(value: Any) -> Any:
    """The moment (UTC seconds) that a date-time with its zone means, such as
    `2026-12-01T18:00+01:00`; a number as it is. ValueError.
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            raise ValueError(
                f"{quoted(value)} is no time; write UTC seconds, or a date-time with"
                " its zone such as 2026-12-01T18:00+01:00"
            ) from None
    if not isinstance(value, datetime):
        return value
    if value.tzinfo is None:
        raise ValueError(
            f"{value.isoformat()} does not say its zone; write it with one, such as"
            " 2026-12-01T18:00+01:00"
        )
    return value.timestamp()


def from_now(value: Any, now: float) -> Any:
    """The moment that a duration such as `8h` means at `now` (UTC seconds), as a whole
    second; anything else as it is.
    """
    if not isinstance(value, str):
        return value
    try:
        return float(math.ceil(now + units.seconds(value)))
    except ValueError:
        return value


def counted_from_now(body: Any, now: float) -> Any:
    """A job as JSON, with the moment that its deadline means at `now` (UTC seconds)."""
    if not isinstance(body, dict) or "deadline" not in body:
        return body  # pyright: ignore[reportUnknownVariableType]
    given = cast("dict[str, Any]", body)
    return {**given, "deadline": from_now(given["deadline"], now)}


def deadline_of(field: str, text: str, zone: ZoneInfo, now: float) -> float:
    """The moment (UTC seconds) that a person means by `8h`, or by a date and a time in
    `zone` unless it says its own; `now` is now. InvalidInputError names `field`.
    """
    written = text.strip()
    moment = from_now(written, now)
    if isinstance(moment, float):
        return moment
    if ":" not in written:
        # A day could mean its begin or its end.
        fault = f"{quoted(text)} is no date with a time"
        raise InvalidInputError.of(field, fault, _RIGHT)
    return moment_in(field, written, zone, now)


def refuse_past(deadline: float, now: float, field: str = "deadline") -> None:
    """InvalidInputError for a deadline that is not after `now` (UTC seconds)."""
    if deadline <= now:
        raise InvalidInputError.of(
            field,
            f"is {in_words(deadline)}{_IS_PAST}",
            "give a later time, or leave it out",
        )


def is_past_only(error: InvalidInputError) -> bool:
    """Whether a deadline that is past is all that is wrong."""
    return all(
        fault.field.rpartition(".")[2] == "deadline" and fault.fault.endswith(_IS_PAST)
        for fault in error.faults
    )


def in_words(deadline: float) -> str:
    """A deadline for people anywhere."""
    at = datetime.fromtimestamp(deadline, UTC)
    return at.strftime("%Y-%m-%d %H:%M:%S UTC").replace(":00 UTC", " UTC")
