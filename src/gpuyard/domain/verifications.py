"""Verdicts of checks, as whoever verifies leaves them on the server. Times are UTC
seconds.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from gpuyard.domain.spec_values import Line, Name
from gpuyard.domain.strict_model import StrictModel
from gpuyard.domain.trust import LAST_TIME, MAX_PLACE

LONGEST_EVIDENCE = 600_000
"""In characters, so that a record with it is a small body (`server/bodies.py`)."""
Word = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z_]{0,39}$")]
At = Annotated[float, Field(ge=0, le=LAST_TIME)]
CheckId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,100}$")]


class JudgedLine(StrictModel):
    """One thing that a check judged, and why; `ok` is null if it could not be."""

    name: Name
    ok: bool | None = None
    reason: Line = ""


class NewVerification(StrictModel):
    """The verdict of a check.

    `executor`, `gpu_class` and `place` are what was checked, `outcome` is `passed`,
    `failed`, `excused`, `blameless`, `waited`, `unjudged`, `unexplained` or
    `other_engine`, and `reason` is empty if it passed. `at`: when it was judged.
    `solve_s`: from the seed to the answers. `trust`: what the executor is trusted after
    it, from 0 to 1. `lines`: all that was judged. `evidence`: the signed file, as text.
    """

    executor: Name
    gpu_class: Name
    place: Annotated[Name, StringConstraints(max_length=MAX_PLACE)]
    outcome: Word
    reason: Line = ""
    at: At
    solve_s: Annotated[float, Field(ge=0)] | None = None
    trust: Annotated[float, Field(ge=0, le=1)] | None = None
    job: CheckId | None = None
    lines: list[JudgedLine] = Field(default_factory=list[JudgedLine], max_length=64)
    evidence: Annotated[str, StringConstraints(max_length=LONGEST_EVIDENCE)] | None = (
        None
    )


class Verification(BaseModel):
    """The verdict of a check, with what it judged. `recorded_by`: the user who left it;
    null for the owner of the instance. `has_evidence`: the server has its signed file.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    executor: str
    gpu_class: str
    place: str
    outcome: str
    reason: str = ""
    at: float
    solve_s: float | None = None
    trust: float | None = None
    job: str | None = None
    lines: list[JudgedLine] = []
    has_evidence: bool = False
    recorded_by: str | None = None
    recorded_at: float
