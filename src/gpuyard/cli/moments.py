"""Times as people write them: how long ago, or a date."""

import time
from datetime import datetime

from gpuyard.domain import units
from gpuyard.domain.errors import InvalidInputError


def moment(option: str, text: str) -> float:
    """The time (UTC seconds) that `2h` (ago) or a date means, local unless it says
    otherwise; InvalidInputError names the option.
    """
    try:
        return time.time() - units.seconds(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        raise InvalidInputError.of(
            option,
            f"{text!r} is no time",
            "write how long ago, such as 2h, or a date such as 2026-11-25 or"
            " '2026-11-25 14:30'",
        ) from None
