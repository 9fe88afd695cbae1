"""Results of studies of distributed inference, as the client leaves them on the server.
Times are UTC seconds.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from gpuyard.domain.spec_values import Line, Name
from gpuyard.domain.strict_model import StrictModel
from gpuyard.domain.trust import LAST_TIME

RunId = Annotated[str, StringConstraints(pattern=r"^run_[A-Za-z0-9_]{1,60}$")]
Figure = float | None
Amount = Annotated[float, Field(ge=0)] | None
Size = Annotated[int, Field(ge=0, le=1_000_000)] | None


class StrategyResult(StrictModel):
    """What came of one strategy.

    `label` is the name that the study gives it, empty for none. `rank` counts from 1,
    the best; null with `not_ranked`, which says why. `figure` is what it was ranked by:
    the least is best. `agreement` is a part from 0 to 1. Memory is that of the rank
    with most, in GiB.
    """

    strategy_id: Name
    label: Line = ""
    strategy: Name
    status: Name
    rank: Annotated[int, Field(ge=1)] | None = None
    figure: Figure = None
    not_ranked: Line = ""
    gpus: Size = None
    tp_size: Size = None
    pp_size: Size = None
    dp_size: Size = None
    prompts: Size = None
    expected: Size = None
    agreement: Annotated[float, Field(ge=0, le=1)] | None = None
    tokens_per_s: Amount = None
    latency_ms_p50: Amount = None
    latency_ms_p90: Amount = None
    ttft_ms_p50: Amount = None
    wall_s: Amount = None
    gpu_hours: Amount = None
    cost: Amount = None
    peak_memory_gib: Amount = None
    speed_up: Amount = None
    efficiency: Amount = None


class NewStudyResult(StrictModel):
    """What came of a run of a study.

    `objective` is what its strategies are ranked by, `reason` says in words why the
    `best` is. `agreement_with` is `reference` or `peer`. `warnings` are of what a
    reader should beware.
    """

    study: Name
    model: Name
    objective: Name
    best: Name | None = None
    reason: Line = ""
    agreement_with: Name = "reference"
    currency: Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")] = "USD"
    at: Annotated[float, Field(ge=0, le=LAST_TIME)]
    strategies: Annotated[list[StrategyResult], Field(max_length=400)]
    warnings: list[Line] = Field(default_factory=list[Line], max_length=100)


class StudyResult(BaseModel):
    """What came of a run of a study. `recorded_by`: the user who left it; null for the
    owner of the instance.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    run: str
    study: str
    model: str
    objective: str
    best: str | None = None
    reason: str = ""
    agreement_with: str = "reference"
    currency: str = "USD"
    at: float
    strategies: list[StrategyResult]
    warnings: list[str] = []
    recorded_by: str | None = None
    recorded_at: float
