"""What a job has cost, from its times and its price."""

import time
from decimal import Decimal

from gpuyard.domain.jobconfig import CostInfo, JobResult


def cost_of(
    result: JobResult, price_per_hour: Decimal, currency: str, now: float | None = None
) -> CostInfo:
    """What a job has cost until its end, or until `now` (UTC seconds)."""
    seconds = 0.0
    if result.started_at is not None:
        now = time.time() if now is None else now
        seconds = max((result.completed_at or now) - result.started_at, 0.0)
    total = price_per_hour * Decimal(str(seconds)) / 3600
    return CostInfo(result.job_id, total, currency, {"compute": total})
