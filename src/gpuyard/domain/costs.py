"""What attempts cost in a period: the resource of the HTTP API. Times are UTC seconds.

The cost of an attempt is spread evenly over the seconds that it ran. So a period gets
the part that ran in it, and the parts of any periods that follow one another add up to
the cost of the attempt.
"""

from decimal import Decimal

from pydantic import BaseModel, ConfigDict, Field

from gpuyard.domain.cost_keys import CostBy
from gpuyard.domain.exchange_rates import MissingRate


class CostLine(BaseModel):
    """What some attempts cost in one currency.

    `key` is the user, the project and so on; empty in a sum. `converted` is the amount
    in the currency of the report, each day at its rate; None if a rate is missing.
    `running` is the part of
    `amount` of attempts that still run. `waste` is the part of attempts that failed,
    were lost or preempted, and left no checkpoint. `idle` is the part that paid for
    GPUs while they did nothing, and `idle_gpu_hours` for how long that was, as far as
    their use was measured: for `measured_gpu_hours` of `gpu_hours`.

    `unused` is what GPUs were worth that were reserved and that nobody used, neither
    the holder nor others, for `unused_gpu_hours`. It is no part of `amount`.

    `parts` is what of `amount` was paid for rented machines themselves (`machine`), and
    beside them for disks, public addresses and traffic, as far as that is told apart.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    key: str = ""
    currency: str
    amount: Decimal
    converted: Decimal | None = None
    running: Decimal = Decimal(0)
    waste: Decimal = Decimal(0)
    idle: Decimal = Decimal(0)
    attempts: int = 0
    running_attempts: int = 0
    gpu_hours: float = 0.0
    cpu_hours: float = 0.0
    waste_gpu_hours: float = 0.0
    idle_gpu_hours: float = 0.0
    measured_gpu_hours: float = 0.0
    unused: Decimal = Decimal(0)
    unused_gpu_hours: float = 0.0
    parts: dict[str, Decimal] = Field(default_factory=dict[str, Decimal])


class CostReport(BaseModel):
    """What attempts cost from `begin` until before `end`.

    `items` has a line for each key and currency, `sums` one for each currency. `total`
    is everything in the `currency` of bills; None if a rate is missing, and
    `missing_rates` says which.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    by: CostBy
    begin: float
    end: float
    timezone: str
    items: list[CostLine] = Field(default_factory=list[CostLine])
    sums: list[CostLine] = Field(default_factory=list[CostLine])
    currency: str
    total: Decimal | None = None
    missing_rates: list[MissingRate] = Field(default_factory=list[MissingRate])
