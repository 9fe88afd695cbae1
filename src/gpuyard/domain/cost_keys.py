"""By what costs are added up, and whom they are of."""

from enum import StrEnum

INSTANCE_OWNER = "owner"
"""The name, in reports and budgets, of whoever owns the instance."""
NOBODY = "(nobody)"
"""What stands for the user of what is a project's, in reports."""
NO_PROJECT = "(none)"
"""What stands for the project of jobs without one, in reports."""


class CostBy(StrEnum):
    """By what costs are added up."""

    USER = "user"
    PROJECT = "project"
    TIER = "tier"
    PROVIDER = "provider"
    GPU = "gpu"
    DAY = "day"
    WEEK = "week"
    """From Monday on, as ISO 8601 counts them."""
    MONTH = "month"

    @property
    def is_time(self) -> bool:
        """Whether the lines are times, in their order."""
        return self in (CostBy.DAY, CostBy.WEEK, CostBy.MONTH)
