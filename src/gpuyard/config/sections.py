"""The base class and the types of the settings' sections."""

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from gpuyard.domain import units
from gpuyard.domain.strict_model import StrictModel

DAY_S = 86_400.0
# No setting needs more. Clocks and counters of bytes go wrong far beyond.
MOST_DAYS = 100_000.0
_MOST_S = MOST_DAYS * DAY_S
_MOST_GB = 1e6

Seconds = Annotated[float, BeforeValidator(units.seconds), Field(ge=0, le=_MOST_S)]
Period = Annotated[float, BeforeValidator(units.seconds), Field(gt=0, le=_MOST_S)]
Days = Annotated[float, Field(ge=0, le=MOST_DAYS)]
Hours = Annotated[float, Field(ge=0, le=MOST_DAYS * 24)]
Gigabytes = Annotated[float, BeforeValidator(units.memory_gb), Field(gt=0, le=_MOST_GB)]
Megabytes = Annotated[float, Field(gt=0, le=_MOST_GB * 1000)]


def absolute(path: Path | None) -> Path | None:
    """The path with its `~` expanded; ValueError if it is relative."""
    found = path.expanduser() if path else None
    if found and not found.is_absolute():
        raise ValueError(
            f"{str(path)!r} is no absolute path; server, agents and jobs each run"
            " somewhere else"
        )
    return found


def bucket_url(url: str | None) -> str | None:
    """The address of a bucket; ValueError if it is none."""
    scheme, _, place = (url or "").partition("://")
    if url is not None and (scheme not in ("s3", "gs", "az") or not place):
        raise ValueError(
            "is no bucket; name one as s3://bucket/prefix, or gs://, az://"
        )
    return url


class SettingsSection(StrictModel):
    """A table of the settings: frozen, and an unknown key is an error."""
