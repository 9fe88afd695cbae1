"""Parties: whose a job is, for shares and quotas.

A share key names what gets a share of its own: a user in a project that has shares. All
other work of a user, in whatever projects, has one key, so nobody gains by inventing
projects. The jobs of one key wait in one line.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

ShareKey = tuple[str, str]
"""Project (empty: none that has shares) and user."""
NO_SHARES: ShareKey = ("", "")
"""The key of all jobs where shares do not count."""
Group = tuple[str, ...]
"""A project, or the key of a user's work outside of projects."""
Root = str | Group
"""What stands beside others at the first level: an organisation, or a group that is in
none.
"""
DAY_S = 86_400.0


def group_of(line: ShareKey) -> Group:
    """The group of the line."""
    project, _ = line
    return (project,) if project else line


class Party(NamedTuple):
    """Whose a job is: its line, the project and user whose quotas it is under, and
    those for which something is reserved (`reserved_for`). All are empty where they do
    not count.
    """

    line: ShareKey = NO_SHARES
    limits: ShareKey = NO_SHARES
    reserved_for: ShareKey = NO_SHARES


EVERYBODY = Party()


@dataclass(frozen=True, slots=True)
class ProjectShare:
    """The shares of a project within its `organisation`, or among all if it is in none;
    and those of its users within it. A user that is not named has one.
    """

    shares: float = 1.0
    users: Mapping[str, float] = field(default_factory=dict[str, float])
    organisation: str = ""


@dataclass(frozen=True, slots=True)
class ShareRules:
    """Who has which shares. `half_life_s`: after so many seconds, use counts half.

    `organisations` are those of organisations among all; one that is not named has one.
    `users` are the shares of users for their work outside of `projects`; a user that is
    not named has one. `ahead_s`: what has just started counts as if it had run for so
    long, so that one user does not get all places that become free at once.
    """

    half_life_s: float = 7 * DAY_S
    projects: Mapping[str, ProjectShare] = field(
        default_factory=dict[str, ProjectShare]
    )
    users: Mapping[str, float] = field(default_factory=dict[str, float])
    ahead_s: float = 3600.0
    organisations: Mapping[str, float] = field(default_factory=dict[str, float])

    def organisation_of(self, project: str) -> str:
        """The organisation of the project; empty if it is in none, or has no shares."""
        known = self.projects.get(project)
        return known.organisation if known else ""

    def root_of(self, group: Group) -> Root:
        """What stands for the group at the first level."""
        return self.organisation_of(group[0]) or group

    def of_organisation(self, name: str) -> float:
        """The shares of the organisation among all."""
        return self.organisations.get(name, 1.0)

    def of_root(self, line: ShareKey) -> float:
        """The shares among all of what stands for the line at the first level."""
        organisation = self.organisation_of(line[0])
        if organisation:
            return self.of_organisation(organisation)
        return self.of_group(line)

    def of_group(self, line: ShareKey) -> float:
        """The shares of the project of the line within its organisation, or among all
        if it is in none; of the user, if it is that user's work outside of projects.
        """
        project, user = line
        if project:
            return self.projects[project].shares
        return self.users.get(user, 1.0)

    def within_group(self, line: ShareKey) -> float:
        """The shares of the user of the line within the project."""
        project, user = line
        return self.projects[project].users.get(user, 1.0) if project else 1.0


@dataclass(frozen=True, slots=True)
class Quota:
    """The most GPUs that may run at once, the most jobs that may be queued, and the
    GPU hours that may be used in a month; None for no limit.
    """

    running_gpus: int | None = None
    queued_jobs: int | None = None
    gpu_hours_per_month: float | None = None


NO_QUOTA = Quota()
DEFAULT = "default"
"""The name under which the quota of all others stands."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of users and of projects, by name. Jobs without a project are under no
    project's quota.
    """

    users: Mapping[str, Quota] = field(default_factory=dict[str, Quota])
    projects: Mapping[str, Quota] = field(default_factory=dict[str, Quota])

    def of_user(self, user: str) -> Quota:
        """The quota of the user."""
        return self.users.get(user) or self.users.get(DEFAULT, NO_QUOTA)

    def of_project(self, project: str) -> Quota:
        """The quota of the project."""
        if not project:
            return NO_QUOTA
        return self.projects.get(project) or self.projects.get(DEFAULT, NO_QUOTA)

    @property
    def limit_running(self) -> bool:
        """True if any limits running GPUs."""
        every = (*self.users.values(), *self.projects.values())
        return any(quota.running_gpus is not None for quota in every)

    @property
    def limit_months(self) -> bool:
        """True if any limits the GPU hours of a month."""
        every = (*self.users.values(), *self.projects.values())
        return any(quota.gpu_hours_per_month is not None for quota in every)

    @property
    def limit_queued(self) -> bool:
        """True if any limits queued jobs."""
        every = (*self.users.values(), *self.projects.values())
        return any(quota.queued_jobs is not None for quota in every)
