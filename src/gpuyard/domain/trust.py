"""Trust: what those who check the places where jobs run have found out. Times are UTC
seconds.

A place is a provider (`slurm`), an offer (`slurm/gpu`), a node (`node:NAME`) or a GPU
(`gpu:UUID`).
"""

from collections.abc import Collection
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.domain.spec_values import Line
from gpuyard.domain.strict_model import StrictModel

MAX_PLACE = 400
UNVERIFIED = 0.9
"""What a place without a score counts as where other places have one."""
# The end of the year 9999, the last time that has a date.
LAST_TIME = 253_402_300_799.0
_FORM = "a provider's name, an offer's id such as slurm/gpu, node:NAME or gpu:UUID"


class TrustFinding(StrictModel):
    """What to record about a place, in place of the earlier record.

    `score`: the probability that it does what it claims, None if unknown. Until
    `quarantined_until` it gets only jobs that allow quarantined places; None: no
    quarantine. `reason` is for people.
    """

    score: Annotated[float, Field(strict=True, ge=0, le=1)] | None = None
    quarantined_until: (
        Annotated[float, Field(strict=True, ge=0, le=LAST_TIME)] | None
    ) = None
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
    """InvalidInputError unless `place` is written like a place of one of `providers`;
    it need not exist now.
    """
    kind, colon, name = place.partition(":")
    provider, slash, rest = place.partition("/")
    if len(place) > MAX_PLACE or not place.isprintable():
        raise InvalidInputError.of(
            "place", f"{quoted(place)} is no place", f"give {_FORM}"
        )
    if kind in ("node", "gpu") and colon:
        if not name.strip():
            remedy = {
                "node": "give its name, as in node:box",
                "gpu": "give its UUID, as in gpu:GPU-1234",
            }[kind]
            raise InvalidInputError.of(
                "place", f"{quoted(place)} names no {kind}", remedy
            )
    elif (
        not provider.strip()
        or (colon and "/" not in kind)
        or (slash and not rest.strip("/ "))
    ):
        raise InvalidInputError.of(
            "place", f"{quoted(place)} is no place", f"give {_FORM}"
        )
    elif provider not in providers:
        known = ", ".join(sorted(providers))
        raise InvalidInputError.of(
            "place",
            f"there is no provider {quoted(provider)}",
            f"configured are: {known}",
        )
