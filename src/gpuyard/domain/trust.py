"""Trust: what was found out about a place where jobs run, by whoever checks it. Times are UTC seconds.

A place is a provider (`slurm`), an offer (`slurm/gpu`), a node (`node:NAME`) or a GPU (`gpu:UUID`).
"""

from collections.abc import Collection
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.domain.jobspec import Line

MAX_PLACE = 400
# The end of the year 9999: what comes later has no date.
LAST_TIME = 253_402_300_799.0
_FORM = "a provider's name, an offer's id such as slurm/gpu, node:NAME or gpu:UUID"


class TrustFinding(BaseModel):
    """What to record about a place, instead of what was recorded before.

    `score`: the chance that it does what it claims, None where nobody says. Until `quarantined_until` it gets no jobs
    but those that allow it; None for no quarantine. `reason` is for people.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    score: Annotated[float, Field(strict=True, ge=0, le=1)] | None = None
    quarantined_until: Annotated[float, Field(strict=True, ge=0, le=LAST_TIME)] | None = None
    reason: Line = ""


class Trust(BaseModel):
    """What is recorded about a place."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    place: str
    score: float | None = None
    quarantined_until: float | None = None
    reason: str = ""
    updated_at: float


def check_place(place: str, providers: Collection[str]) -> None:
    """InvalidInputError unless `place` names a place of one of `providers`; whether it exists now does not matter."""
    kind, colon, name = place.partition(":")
    provider, slash, rest = place.partition("/")
    if len(place) > MAX_PLACE or not place.isprintable():
        raise InvalidInputError.of("place", f"{quoted(place)} is no place", f"give {_FORM}")
    if kind in ("node", "gpu") and colon:
        if not name.strip():
            remedy = {"node": "give its name, as in node:box", "gpu": "give its UUID, as in gpu:GPU-1234"}[kind]
            raise InvalidInputError.of("place", f"{quoted(place)} names no {kind}", remedy)
    elif not provider.strip() or (colon and "/" not in kind) or (slash and not rest.strip("/ ")):
        raise InvalidInputError.of("place", f"{quoted(place)} is no place", f"give {_FORM}")
    elif provider not in providers:
        known = ", ".join(sorted(providers))
        raise InvalidInputError.of("place", f"there is no provider {quoted(provider)}", f"configured are: {known}")
