"""Advice on costs: the resource of the HTTP API. Times are UTC seconds."""

from decimal import Decimal
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class AdviceTopic(StrEnum):
    """What an advice is about."""

    GPU_IDLE = "gpu_idle"
    GPU_WAITS_FOR_DATA = "gpu_waits_for_data"
    TIER_TOO_LARGE = "tier_too_large"
    SPOT = "spot"


class CostAdvice(BaseModel):
    """What could have cost less: the `attempts` of a `program` (the name of its jobs)
    of one user.

    `measured` says what was seen there, `remedy` what to do. They cost `amount`, and it
    would have saved `saved` of that, at most. `jobs` are a few of their jobs, the
    dearest first. `instead` is the tier or the offer that would have done.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    topic: AdviceTopic
    user: str
    program: str
    attempts: int
    jobs: list[str] = Field(default_factory=list[str])
    hours: float
    currency: str
    amount: Decimal
    saved: Decimal
    measured: str
    remedy: str
    instead: str | None = None


class CostAdviceReport(BaseModel):
    """Advice on the attempts that ended from `begin` until before `end`: what saves
    most comes first, by currency. The savings are not to be added up, because an
    attempt may be in several items.

    Of `attempts`, gpuyard knows for `memory_measured` how much memory they used. Of the
    `gpu_hours`, it knows for `gpu_hours_measured` how busy the GPUs were.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    begin: float
    end: float
    items: list[CostAdvice] = Field(default_factory=list[CostAdvice])
    attempts: int = 0
    memory_measured: int = 0
    gpu_hours: float = 0.0
    gpu_hours_measured: float = 0.0
