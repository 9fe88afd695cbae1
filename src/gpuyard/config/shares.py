"""The settings of fair shares and quotas."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from gpuyard.config.sections import Period, SettingsSection
from gpuyard.domain.cron import time_zone


def _timezone(value: str) -> str:
    return time_zone(value).key


class UserShare(SettingsSection):
    """The shares of a user."""

    shares: float = Field(default=1.0, gt=0, le=1e6)


class OrganisationShare(SettingsSection):
    """The `shares` of an organisation among all."""

    shares: float = Field(default=1.0, gt=0, le=1e6)


class ProjectShares(SettingsSection):
    """The `shares` of a project within its `organisation`, or among all if it is in
    none; and of its `users` within it.
    """

    organisation: str | None = None
    shares: float = Field(default=1.0, gt=0, le=1e6)
    users: dict[str, UserShare] = Field(default_factory=dict[str, UserShare])


class FairShareSettings(SettingsSection):
    """Shares under `scheduler.policy = "fair"` (see the guide on fair shares). After
    each `half_life`, what was used counts half.

    `organisations` have shares among all, projects within theirs, and users within
    projects. Projects in no organisation stand beside the organisations. Who is not
    named has one share. `users` have shares for their work outside of these projects.
    """

    half_life: Period = 7 * 86400.0
    organisations: dict[str, OrganisationShare] = Field(
        default_factory=dict[str, OrganisationShare]
    )
    projects: dict[str, ProjectShares] = Field(default_factory=dict[str, ProjectShares])
    users: dict[str, UserShare] = Field(default_factory=dict[str, UserShare])

    @model_validator(mode="after")
    def _organisations_are_known(self) -> Self:
        """A name that was misspelt would give a project a share of its own."""
        for name, project in self.projects.items():
            wanted = project.organisation
            if wanted is None or wanted in self.organisations:
                continue
            known = ", ".join(sorted(self.organisations)) or "there is none"
            raise ValueError(
                f"projects.{name}.organisation: there is no organisation {wanted!r}"
                f" (known: {known}); add [fair_share.organisations.{wanted}]"
            )
        return self


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
