"""Standings: how much of its share everybody has used, under the policy `fair`.

This looks at all who are known, so it is for people's questions and not for decisions.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from gpuyard.scheduler.parties import Group, Root, ShareKey, ShareRules, group_of
from gpuyard.scheduler.usage import Usage
from gpuyard.scheduler.view import View

_ROUNDING = 1e-6
"""Which part of a sum is only what rounding has left."""


class ShareLevel(StrEnum):
    """What has a share."""

    ORGANISATION = "organisation"
    PROJECT = "project"
    USER = "user"


@dataclass(frozen=True, slots=True)
class Standing:
    """The share of an organisation, a project or a user, and what they have used.

    `name` is whose it is; that of the owner of the instance is empty. `organisation`
    and `project` are those that it is in; empty for none. `shares` count among those
    that are in the same. `due` and `used` are parts, from 0 to 1, of all that is due
    and of all that was used. `gpu_seconds` are those used, decayed until now; what a
    user used outside of projects has those inside with it. `gpu_seconds_of_all`: what
    all have used.
    """

    level: ShareLevel
    name: str
    organisation: str
    project: str
    shares: float
    due: float
    used: float
    gpu_seconds: float
    gpu_seconds_of_all: float


def standings(view: View, now: float) -> list[Standing]:
    """Everybody who has a share by the settings, has jobs, or has used something: each
    organisation, then its projects, each followed by its users. Empty unless the policy
    is `fair`.
    """
    usage = view.usage
    if not usage.by_share:
        return []
    return _Tree(usage, _lines(view, now), now).walk()


def _lines(view: View, now: float) -> set[ShareKey]:
    """The lines of all who are known. Work in projects alone makes no line outside."""
    usage = view.usage
    rules = usage.rules
    found = {job.party.line for job in view.jobs.values()}
    found.update(("", user) for user in rules.users)
    for name, project in rules.projects.items():
        found.update((name, user) for user in project.users)
    known = usage.known_lines()
    found.update(line for line in known if line[0])
    inside: defaultdict[str, float] = defaultdict(float)
    for line in known:
        if line[0]:
            inside[line[1]] += usage.gpu_seconds(line, now)[1]
    for line in known:
        if not line[0]:
            used = usage.gpu_seconds(line, now)[1]
            if used - inside[line[1]] > _ROUNDING * used:
                found.add(line)
    return found


class _Tree:
    """Organisations, the groups in each, and the lines in each of these."""

    def __init__(self, usage: Usage, lines: Collection[ShareKey], now: float) -> None:
        self._usage = usage
        self._rules: ShareRules = usage.rules
        self._now = now
        self._lines: dict[Group, list[ShareKey]] = {}
        self._groups: dict[Root, list[Group]] = {}
        for project in self._rules.projects:
            self._add_group((project,))
        for line in sorted(lines):
            self._add_group(group_of(line))
            self._lines[group_of(line)].append(line)
        users = {user for _, user in usage.known_lines()}
        self._total = sum(usage.gpu_seconds(("", user), now)[1] for user in users)

    def _add_group(self, group: Group) -> None:
        if group not in self._lines:
            self._lines[group] = []
            root = self._rules.root_of(group)
            self._groups.setdefault(root, []).append(group)

    def walk(self) -> list[Standing]:
        """The standings, from the top down."""
        found: list[Standing] = []
        of_roots = {root: self._shares_of_root(root) for root in self._groups}
        whole = sum(of_roots.values())
        for root in sorted(self._groups, key=_organisations_first):
            due = of_roots[root] / whole
            if isinstance(root, str):
                found.append(self._of_organisation(root, due))
            found += self._of_groups(root, due)
        return found

    def _shares_of_root(self, root: Root) -> float:
        if isinstance(root, str):
            return self._rules.of_organisation(root)
        return self._rules.of_group(_line_of(root))

    def _of_organisation(self, name: str, due: float) -> Standing:
        used = self._usage.of_organisation(name, self._now)
        shares = self._rules.of_organisation(name)
        level = ShareLevel.ORGANISATION
        return self._standing(level, name, "", "", shares, due, used)

    def _of_groups(self, root: Root, due_of_root: float) -> list[Standing]:
        found: list[Standing] = []
        groups = self._groups[root]
        of_group = {
            group: self._rules.of_group(_line_of(group)) for group in sorted(groups)
        }
        whole = sum(of_group.values())
        for group, shares in of_group.items():
            due = due_of_root * shares / whole
            if len(group) == 1:
                found.append(self._of_project(group[0], shares, due))
            found += self._of_users(group, due)
        return found

    def _of_project(self, name: str, shares: float, due: float) -> Standing:
        organisation = self._rules.organisation_of(name)
        used = self._usage.gpu_seconds((name, ""), self._now)[0]
        level = ShareLevel.PROJECT
        return self._standing(level, name, organisation, name, shares, due, used)

    def _of_users(self, group: Group, due_of_group: float) -> list[Standing]:
        found: list[Standing] = []
        lines = self._lines[group]
        whole = sum(map(self._rules.within_group, lines))
        for line in lines:
            project, user = line
            within = self._rules.within_group(line)
            shares = within if project else self._rules.of_group(line)
            found.append(
                self._standing(
                    ShareLevel.USER,
                    user,
                    self._rules.organisation_of(project),
                    project,
                    shares,
                    due_of_group * within / whole,
                    self._usage.gpu_seconds(line, self._now)[1],
                )
            )
        return found

    def _standing(
        self,
        level: ShareLevel,
        name: str,
        organisation: str,
        project: str,
        shares: float,
        due: float,
        gpu_seconds: float,
    ) -> Standing:
        used = gpu_seconds / self._total if self._total > 0 else 0.0
        return Standing(
            level,
            name,
            organisation,
            project,
            shares,
            due,
            used,
            gpu_seconds,
            self._total,
        )


def _line_of(group: Group) -> ShareKey:
    """A line in the group."""
    return (group[0], "") if len(group) == 1 else (group[0], group[1])


def _organisations_first(root: Root) -> tuple[int, Group]:
    """Organisations come first, then projects that are in none, then users."""
    if isinstance(root, str):
        return (0, (root,))
    return (len(root), root)
