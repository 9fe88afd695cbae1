"""What an instance's own runs say of its tiers: the resource of the HTTP API. Times
are seconds, and rates are per second.
"""

from decimal import Decimal

from pydantic import BaseModel, ConfigDict, Field


class MeasuredSize(BaseModel):
    """The completed runs on one size: `gpus` GPUs of the class `gpu` (empty: none), in
    a tier.

    `seconds` and `cost` are the medians of a run, `gpu_used` how busy its GPUs were on
    average, from 0 to 1; None if nobody measured that.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    gpu: str
    gpus: int
    tier: str | None
    currency: str
    runs: int
    programs: int
    seconds: float
    cost: Decimal
    gpu_used: float | None = None


class BenchmarkedProgram(BaseModel):
    """The completed runs of one program on one size: jobs of one name and user.

    All figures are medians. The rates are those that the program printed, and
    `cost_per_epoch` needs epochs in its output. `speedup` is how many times as fast it
    is as on the fewest GPUs of the same class, compared by `compared_by`, and
    `efficiency` that speedup per GPU; None where there is nothing to compare with.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    program: str
    user: str
    gpu: str
    gpus: int
    tier: str | None
    currency: str
    runs: int
    seconds: float
    cost: Decimal
    steps_per_s: float | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    cost_per_epoch: Decimal | None = None
    gpu_used: float | None = None
    speedup: float | None = None
    efficiency: float | None = None
    compared_by: str | None = None


class BenchmarkReport(BaseModel):
    """What the runs that completed from `begin` until before `end` (UTC seconds)
    measured: by size, and by program.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    begin: float
    end: float
    runs: int
    sizes: list[MeasuredSize] = Field(default_factory=list[MeasuredSize])
    programs: list[BenchmarkedProgram] = Field(default_factory=list[BenchmarkedProgram])
