"""What the readers of the clouds' bills have in common."""

from collections.abc import Sequence
from datetime import date, datetime, time, timedelta, tzinfo

from gpuyard.domain.bills import CostPart

DAY = timedelta(days=1)
PartWords = Sequence[tuple[str, CostPart]]
"""Words in a cloud's names of what it charges for, in lower case."""


def part_with(words: PartWords, name: str) -> CostPart:
    """What a charge of this name is for: by the first word that stands in the name,
    whatever its case.
    """
    lower = name.lower()
    found = (part for word, part in words if word in lower)
    return next(found, CostPart.OTHER)


def bounds_of(day: date, zone: tzinfo) -> tuple[float, float]:
    """The begin and the end of a day in the time zone of a bill, in UTC seconds."""
    begin = datetime.combine(day, time(), zone)
    return begin.timestamp(), (begin + DAY).timestamp()
