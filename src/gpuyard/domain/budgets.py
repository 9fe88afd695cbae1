"""Budgets: what the jobs of a project or of a user, or all jobs, may cost. Times are
UTC seconds.
"""

from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from gpuyard.domain.cron import time_zone
from gpuyard.domain.exchange_rates import Currency, MissingRate
from gpuyard.domain.spec_values import Name
from gpuyard.domain.strict_model import StrictModel


class BudgetPeriod(StrEnum):
    """After which time a budget begins anew; `total`: never."""

    DAY = "day"
    MONTH = "month"
    TOTAL = "total"


def _timezone(value: str) -> str:
    return time_zone(value).key


Amount = Annotated[Decimal, Field(gt=0, le=Decimal("1e9"), decimal_places=6)]


class BudgetSpec(StrictModel):
    """A budget of a `project` or of a `user`; with neither, of all jobs. When it is
    spent, nothing new starts; if it is `hard`, what runs is asked to save its work and
    ended. Without a `currency` it is in that of bills.
    """

    project: Name | None = None
    user: Name | None = None
    period: BudgetPeriod = BudgetPeriod.MONTH
    amount: Amount
    currency: Currency | None = None
    hard: bool = False
    timezone: Annotated[Name, AfterValidator(_timezone)] = "UTC"

    @model_validator(mode="after")
    def _is_of_one(self) -> Self:
        if self.project is not None and self.user is not None:
            raise ValueError(
                "@project@does not go with user; give one of them, or neither for all"
                " jobs"
            )
        return self


class Budget(BaseModel):
    """A budget as people see it. In its present period, which ends at `ends_at`,
    `spent` is what its attempts have cost until now; `reserved` is what jobs in the
    queue or running may cost beyond that. `forecast` is what it comes to if those that
    run need all of their time, as far as that is in the period. `waiting` counts the
    jobs that it keeps from starting. What costs in a currency of `missing_rates` is not
    in these sums.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    project: str | None = None
    user: str | None = None
    period: BudgetPeriod
    amount: Decimal
    currency: str
    hard: bool
    timezone: str
    spent: Decimal
    reserved: Decimal
    forecast: Decimal
    waiting: int
    ends_at: float | None = None
    missing_rates: list[MissingRate] = Field(default_factory=list[MissingRate])
