"""The settings of fair shares and quotas."""

from typing import Annotated

from pydantic import AfterValidator, Field

from gpuyard.config.sections import Period, SettingsSection
from gpuyard.domain.cron import time_zone


def _timezone(value: str) -> str:
    return time_zone(value).key


class UserShare(SettingsSection):
    """The shares of a user."""

    shares: float = Field(default=1.0, gt=0, le=1e6)


class ProjectShares(SettingsSection):
    """The `shares` of a project among all, and of its `users` within it."""

    shares: float = Field(default=1.0, gt=0, le=1e6)
    users: dict[str, UserShare] = Field(default_factory=dict[str, UserShare])


class FairShareSettings(SettingsSection):
    """Shares under `scheduler.policy = "fair"` (see the guide on fair shares). After
    each `half_life`, what was used counts half.

    `projects` have shares among all, and their users within them; who is not named has
    one share. `users` have shares for their work outside of these projects.
    """

    half_life: Period = 7 * 86400.0
    projects: dict[str, ProjectShares] = Field(default_factory=dict[str, ProjectShares])
    users: dict[str, UserShare] = Field(default_factory=dict[str, UserShare])


class QuotaLimits(SettingsSection):
    """`running_gpus`: the most GPUs that may run at once. `queued_jobs`: the most jobs
    that may be queued. `gpu_hours_per_month`: when so many GPU hours were used in a
    month, further jobs wait for the next one. Unset, any number.
    """

    running_gpus: int | None = Field(default=None, ge=0)
    queued_jobs: int | None = Field(default=None, ge=0)
    gpu_hours_per_month: float | None = Field(default=None, ge=0, le=1e9)


class QuotaSettings(SettingsSection):
    """Quotas of users and projects, by name (see the guide on fair shares). Those under
    `default` are of all that are not named. `timezone`: whose months count.
    """

    timezone: Annotated[str, AfterValidator(_timezone)] = "UTC"

    users: dict[str, QuotaLimits] = Field(default_factory=dict[str, QuotaLimits])
    projects: dict[str, QuotaLimits] = Field(default_factory=dict[str, QuotaLimits])
