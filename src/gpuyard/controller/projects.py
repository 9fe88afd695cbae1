"""The projects of an instance and their members: in memory, so that a request is judged
without a read of the ledger.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuyard.controller.core import Core
from gpuyard.controller.users import Identity, Users
from gpuyard.controller.visibility import NO_PROJECTS
from gpuyard.domain.errors import NotFoundError, RefusedError
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.projects import NewProject, Project, ProjectMember
from gpuyard.domain.users import NewUser, Role, User

# Of a server that does not lead, what it has read is no older than this.
_READ_AGAIN_S = 2.0


@dataclass(frozen=True, slots=True)
class LiveProject:
    """A registered project, and the roles of its members by their names."""

    name: str
    private: bool
    created_at: float
    members: Mapping[str, Role]

    def shown(self) -> Project:
        """The resource."""
        members = [
            ProjectMember(user=user, role=role)
            for user, role in sorted(self.members.items())
        ]
        return Project(
            name=self.name,
            private=self.private,
            created_at=self.created_at,
            members=members,
        )


class Projects:
    """Registered projects, as an extension of the controller."""

    def __init__(self, core: Core, users: Users) -> None:
        self._core = core
        self._users = users
        self.by_name: dict[str, LiveProject] = {}
        # What `hidden_from` has found, until something changes.
        self._hidden: dict[str | None, frozenset[str]] = {}
        self._read_at = float("-inf")
        # Counted, so that a read that began before a change is not believed.
        self._changes = 0

    # --- the extension ---

    def start(self) -> None:
        """Find the projects in the ledger."""
        self.reload()

    def before_deciding(self) -> None:
        """Nothing: decisions do not depend on who is in a project."""

    def reload(self) -> None:
        """Find them in the ledger again."""
        self._take(self._read())

    async def read_again(self) -> None:
        """`reload`, in a thread; what has changed here meanwhile stays."""
        changes = self._changes
        found = await asyncio.to_thread(self._read)
        if changes == self._changes:
            self._take(found)

    async def read_afresh(self) -> None:
        """`read_again` on a server that does not lead, unless it did so just now."""
        if time.monotonic() - self._read_at > _READ_AGAIN_S:
            await self.read_again()

    @property
    def idle(self) -> bool:
        """True: nothing is left to do."""
        return True

    async def close(self) -> None:
        """Nothing."""

    def _read(self) -> dict[str, LiveProject]:
        # In this order: no member is without its project then.
        members = self._core.queries.project_members()
        rows = self._core.queries.projects()
        roles: dict[str, dict[str, Role]] = {row["name"]: {} for row in rows}
        for member in members:
            roles[member["project"]][member["user"]] = Role(member["role"])
        return {
            row["name"]: LiveProject(
                row["name"], bool(row["private"]), row["created_at"], roles[row["name"]]
            )
            for row in rows
        }

    def _take(self, found: dict[str, LiveProject]) -> None:
        self.by_name = found
        self._hidden = {}
        self._changes += 1
        self._read_at = time.monotonic()

    def _keep(self, project: LiveProject) -> None:
        self._take({**self.by_name, project.name: project})

    # --- who sees what ---

    def hidden_from(self, user: str | None) -> frozenset[str]:
        """The private projects of which this user is no member."""
        if user not in self._hidden:
            self._hidden[user] = frozenset(
                name
                for name, project in self.by_name.items()
                if project.private and user not in project.members
            )
        return self._hidden[user]

    def visible_to(self, identity: Identity) -> list[LiveProject]:
        """The projects that exist for who asks, by name."""
        hidden = NO_PROJECTS
        if identity.role is not Role.ADMINISTRATOR:
            hidden = self.hidden_from(identity.user)
        return [self.by_name[name] for name in sorted(self.by_name.keys() - hidden)]

    def find(self, name: str, identity: Identity) -> LiveProject:
        """The project of this name; NotFoundError, also if it does not exist for who
        asks.
        """
        for project in self.visible_to(identity):
            if project.name == name:
                return project
        raise unknown_project(name)

    # --- what people ask for ---

    async def add(self, given: NewProject) -> LiveProject:
        """Register a project; RefusedError if there is one of this name. Jobs that name
        it already are of it from now on.
        """
        if given.name in self.by_name:
            raise RefusedError(
                f"There is a project {given.name} already.",
                f"Change it with `gpuyard project update {given.name}`.",
            )
        project = LiveProject(given.name, given.private, self._core.clock(), {})
        return await self._write(project, EventKind.PROJECT_ADDED)

    async def add_service_account(self, given: NewUser) -> User:
        """Add a user that is one of this project only, with its role there.
        NotFoundError without the project, RefusedError if there is a user of this name.
        """
        project = self.by_name.get(given.project or "")
        if project is None:
            raise unknown_project(given.project or "")
        # In the instance it is a member at most: its role is that in the project.
        lesser = Role.VIEWER if given.role is Role.VIEWER else Role.MEMBER
        user = await self._users.add(given.model_copy(update={"role": lesser}))
        await self.set_member(project, user.name, given.role)
        return user

    async def update(self, project: LiveProject, *, private: bool) -> LiveProject:
        """Make a project private, or open; it counts from the next request on."""
        changed = replace(project, private=private)
        return await self._write(changed, EventKind.PROJECT_CHANGED)

    async def _write(self, project: LiveProject, kind: EventKind) -> LiveProject:
        values = {"private": project.private, "created_at": project.created_at}
        change = Change(Table.PROJECTS, project.name, values)
        info = {"project": project.name, "private": project.private}
        self._emit(kind, change, info)
        self._keep(project)
        await self._core.committed()
        return project

    async def set_member(
        self, project: LiveProject, user: str, role: Role
    ) -> LiveProject:
        """Make a user a member, or give it another role; NotFoundError if nobody has
        this name, RefusedError for a service account of another project.
        """
        self._users.refuse_unknown(user)
        known = self._users.named(user)
        if known and known.project not in (None, project.name):
            raise RefusedError(
                f"{user} is a service account of another project.",
                "Add another account for this project.",
            )
        values = {"project": project.name, "user": user, "role": role.value}
        members = {**project.members, user: role}
        kind = EventKind.PROJECT_MEMBER_SET
        return await self._write_members(project, members, kind, user, values)

    async def remove_member(self, project: LiveProject, user: str) -> LiveProject:
        """Remove a user from a project; NotFoundError if it is no member. Its jobs stay
        in the project.
        """
        if user not in project.members:
            raise NotFoundError(
                f"{user} is no member of the project {project.name}.",
                f"`gpuyard project show {project.name}` lists them.",
            )
        members = {name: role for name, role in project.members.items() if name != user}
        kind = EventKind.PROJECT_MEMBER_REMOVED
        return await self._write_members(project, members, kind, user, None)

    async def _write_members(
        self,
        project: LiveProject,
        members: Mapping[str, Role],
        kind: EventKind,
        user: str,
        values: Mapping[str, Any] | None,
    ) -> LiveProject:
        change = Change(Table.PROJECT_MEMBERS, f"{project.name}/{user}", values)
        info: dict[str, Any] = {"project": project.name, "user": user}
        if values:
            info["role"] = values["role"]
        self._emit(kind, change, info)
        changed = replace(project, members=members)
        self._keep(changed)
        await self._core.committed()
        return changed

    def _emit(self, kind: EventKind, change: Change, info: Mapping[str, Any]) -> None:
        self._core.emit([Event(kind, self._core.clock(), (change,), None, info)])


def unknown_project(name: str) -> NotFoundError:
    """Also of one that does not exist for who asks."""
    return NotFoundError(
        f"There is no project {name!r}.", "`gpuyard project list` lists them."
    )
