"""Who may do what with the things of a project: the one place that says so.

A thing is a job, with its output, checkpoints and events; an array, a batch, a
schedule, a budget or a workspace. What a role may ask for at all is checked before
(`server/permissions.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from gpuyard.controller.projects import LiveProject, Projects, unknown_project
from gpuyard.controller.users import Identity, Users
from gpuyard.controller.visibility import EVERYTHING, Visibility
from gpuyard.domain.errors import ForbiddenError
from gpuyard.domain.users import Changes, ProjectRights, Role


class Action(StrEnum):
    """What somebody wants of a thing."""

    SEE = "see"
    SUBMIT = "submit"
    """Start something in its project."""
    CHANGE = "change"


def _may_always(_: str | None) -> None:
    """For what gpuyard itself submits, and for the owner of the instance."""


@dataclass(frozen=True, slots=True)
class Rights:
    """What exists for who submits something. `check_submits(project)` raises
    ForbiddenError or NotFoundError where it may start nothing.
    """

    visibility: Visibility = EVERYTHING
    check_submits: Callable[[str | None], None] = _may_always


ALL_RIGHTS = Rights()


class Access:
    """Answers for every request, from what is in memory."""

    def __init__(self, users: Users, projects: Projects) -> None:
        self._users = users
        self._projects = projects

    def act_for(self, sender: Identity, name: str) -> Identity:
        """The user `name`, for whom an administrator acts: what that user may do, and
        no more. ForbiddenError for others, and if the user is disabled; NotFoundError.
        """
        if sender.role is not Role.ADMINISTRATOR:
            raise ForbiddenError(
                f"Only administrators act for others; {sender.user} is a {sender.role}"
                " here.",
                "Leave --as (the header Gpuyard-As) out, or ask an administrator.",
            )
        self._users.refuse_unknown(name)
        return replace(self._users.member(name), sender=sender)

    def visibility_of(self, identity: Identity) -> Visibility:
        """What exists for who asks."""
        if identity.role is Role.ADMINISTRATOR:
            return Visibility(identity.user)
        hidden = self._projects.hidden_from(identity.user)
        return Visibility(identity.user, hidden, of_all_users=False)

    def rights_of(self, identity: Identity) -> Rights:
        """What who asks may submit, and what exists for it meanwhile."""
        if identity.role is Role.ADMINISTRATOR:
            return Rights(Visibility(identity.user))
        return Rights(
            self.visibility_of(identity), partial(self.check_submits, identity)
        )

    def may(
        self,
        identity: Identity,
        action: Action,
        project: str | None,
        owner: str | None = None,
    ) -> bool:
        """Whether who asks may do this with a thing of `project` that `owner` has
        submitted (None: the owner of the instance).
        """
        if identity.role is Role.ADMINISTRATOR:
            return True
        registered = self._projects.by_name.get(project or "")
        role = _role_in(registered, identity)
        if role is None:
            return False
        if action is Action.SEE:
            return True
        if not identity.role.includes(Role.MEMBER):
            return False
        if action is Action.SUBMIT:
            return role.includes(Role.MEMBER)
        is_closed = registered is not None and registered.private
        is_own = owner is not None and owner == identity.user
        if is_own and not (is_closed and role is Role.VIEWER):
            return True
        return role.includes(Role.MAINTAINER)

    def project_rights(self, identity: Identity, project: str | None) -> ProjectRights:
        """What who asks may do in a project."""

        def changes_of(owner: str | None) -> bool:
            return self.may(identity, Action.CHANGE, project, owner)

        changes = Changes.NONE
        if changes_of(None):
            changes = Changes.ALL
        elif changes_of(identity.user):
            changes = Changes.OWN
        submits = self.may(identity, Action.SUBMIT, project)
        return ProjectRights(submits=submits, changes=changes)

    def rights_by_project(self, identity: Identity) -> dict[str, ProjectRights]:
        """The same in each registered project that exists for who asks."""
        return {
            name: self.project_rights(identity, name)
            for name in self._projects.by_name
            if self.may(identity, Action.SEE, name)
        }

    def changes_all(self, identity: Identity) -> bool:
        """Whether it may change everything that there is, whosesoever it is."""
        if identity.role is Role.ADMINISTRATOR:
            return True
        has_private = any(each.private for each in self._projects.by_name.values())
        return identity.role is Role.MAINTAINER and not has_private

    def check_submits(self, identity: Identity, project: str | None) -> None:
        """ForbiddenError if who asks may start nothing in this project; NotFoundError
        if it does not exist for it.
        """
        if self.may(identity, Action.SUBMIT, project):
            return
        name = project or ""
        if not self.may(identity, Action.SEE, project):
            raise unknown_project(name)
        if identity.project not in (None, project):
            raise ForbiddenError(
                f"{identity.user} is a service account of the project"
                f" {identity.project}, and starts nothing elsewhere.",
                f"Name its project: --project {identity.project}.",
            )
        raise ForbiddenError(
            f"{identity.user} is no member of the project {name}, and starts nothing in"
            " it.",
            f"Ask a maintainer of it: `gpuyard project show {name}` names them.",
        )

    def check_user_submits(self, user: str, project: str | None) -> None:
        """ForbiddenError or NotFoundError if this user may start nothing in the
        project, or no longer.
        """
        self._users.check_submits(user)
        self.check_submits(self._users.member(user), project)

    def check_changes(
        self, identity: Identity, thing: str, project: str | None, owner: str | None
    ) -> None:
        """ForbiddenError if who asks may not change the thing of this id."""
        if self.may(identity, Action.CHANGE, project, owner):
            return
        whose = owner or "the owner of the instance"
        if owner == identity.user:
            raise ForbiddenError(
                f"{thing} is of the project {project}, where {identity.user} changes"
                " nothing any more.",
                f"Ask a maintainer of it: `gpuyard project show {project}`.",
            )
        raise ForbiddenError(
            f"{thing} was submitted by {whose}; a {identity.role} such as"
            f" {identity.user} changes only what is its own.",
            f"Ask {whose}, or a maintainer.",
        )

    def check_manages(self, identity: Identity, project: LiveProject) -> None:
        """ForbiddenError if who asks may not say who is in the project."""
        if identity.role is Role.ADMINISTRATOR:
            return
        role = project.members.get(identity.user or "", Role.VIEWER)
        if _capped(role, identity) is not Role.MAINTAINER:
            raise ForbiddenError(
                f"{identity.user} is no maintainer of the project {project.name}.",
                f"Ask one of them: `gpuyard project show {project.name}`.",
            )


def _role_in(project: LiveProject | None, identity: Identity) -> Role | None:
    """What who asks may do in a project; None if it does not exist for it. In one that
    nobody has registered, and on top in one that is open, roles are those in the
    instance.
    """
    name = project.name if project else None
    if identity.project not in (None, name):  # a service account of another one
        return None if project and project.private else Role.VIEWER
    if project is None:
        return identity.role
    own = project.members.get(identity.user or "")
    role = None if own is None else _capped(own, identity)
    if project.private:
        return role
    if identity.role is Role.MAINTAINER:
        return identity.role
    return role or Role.VIEWER


def _capped(role: Role, identity: Identity) -> Role:
    """A token is worth no more in a project than it is at all; and who only sees in the
    instance changes nothing in a project.
    """
    cap = identity.token.role if identity.token else None
    if identity.role is Role.VIEWER:
        cap = Role.VIEWER
    return role if cap is None or cap.includes(role) else cap
