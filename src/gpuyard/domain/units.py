"""Reads and writes sizes and durations as people write them: `16`, `"16GB"`, `"512Mi"`,
`"2h"`, `"1h30m"`.
"""

import math
import re
from datetime import UTC, datetime

from gpuyard.domain.errors import quoted

_MEMORY_GB = {
    **dict.fromkeys(("", "g", "gb", "gi", "gib"), 1.0),
    **dict.fromkeys(("m", "mb", "mi", "mib"), 1 / 1024),
    **dict.fromkeys(("t", "tb", "ti", "tib"), 1024.0),
}
_SECONDS = {
    "": 1.0,
    "s": 1.0,
    "sec": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
# Possessive, so that the time for a long run of spaces grows only with its length.
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*+([a-z]*+)\s*+")


def _number(value: object) -> float | None:
    """`value` if it is a plain, finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def memory_gb(value: str | float) -> float:
    """Gigabytes (GB and GiB are the same here) from `16`, `"16GB"` or `"512Mi"`;
    ValueError says what is right.
    """
    number = _number(value)
    if number is not None:
        return number
    match = _PART.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    if match is None or match[2] not in _MEMORY_GB:
        raise ValueError(
            f"{quoted(value)} is not a size; write gigabytes as a number, or a size"
            " such as 16GB or 512Mi"
        )
    return float(match[1]) * _MEMORY_GB[match[2]]


def seconds(value: str | float) -> float:
    """Seconds from `90`, `"90s"`, `"2h"`, `"1h30m"`; ValueError says what is right."""
    number = _number(value)
    if number is not None:
        return number
    text = value.strip().lower() if isinstance(value, str) else ""
    parts = list(_PART.finditer(text))
    units = [part[2] for part in parts]
    whole = "".join(part[0] for part in parts) == text
    # A bare number is seconds only when it stands alone: most people read the 30 of
    # `1h30` as minutes.
    ambiguous = "" in units and len(units) > 1
    known = set(units) <= _SECONDS.keys()
    if not parts or not whole or not known or ambiguous:
        raise ValueError(
            f"{quoted(value)} is not a duration; write seconds as a number, or a"
            " duration such as 90s, 15m or 2h"
        )
    return sum(float(part[1]) * _SECONDS[part[2]] for part in parts)


def format_duration(value: float | None) -> str:
    """A duration for people: `42s`, `3m10s`, `2h05m`, `3d4h`; `-` for None."""
    if value is None or not math.isfinite(value):
        return "-"
    whole = round(value)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600}h"


def format_gb(value: float) -> str:
    """A size for people: `512 MB`, `16 GB`, `1.5 TB`."""
    if value < 1:
        return f"{value * 1024:.0f} MB"
    return f"{value:.4g} GB" if value < 1024 else f"{value / 1024:.3g} TB"


def iso_time(at: float) -> str:
    """A UTC time in ISO 8601, ending in Z."""
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def shortened(text: str, most: int = 60) -> str:
    """A text of which a line shows at most so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
