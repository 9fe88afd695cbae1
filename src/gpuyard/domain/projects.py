"""Projects of an instance, and the roles of their members."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, StrictBool

from gpuyard.domain.cost_keys import NO_PROJECT
from gpuyard.domain.spec_values import Name
from gpuyard.domain.strict_model import StrictModel
from gpuyard.domain.users import Role
from gpuyard.domain.workspaces import DEFAULT_PROJECT


def _project_name(value: str) -> str:
    if value in (DEFAULT_PROJECT, NO_PROJECT):
        raise ValueError(
            f"{value!r} is what jobs without a project are listed under; use another"
            " name"
        )
    if "/" in value:
        raise ValueError(f"{value!r} has a slash; use a name without one")
    return value


def _project_role(value: Role) -> Role:
    if value is Role.ADMINISTRATOR:
        raise ValueError(
            "'administrator' is a role in the whole instance; use viewer, member or"
            " maintainer"
        )
    return value


ProjectName = Annotated[Name, AfterValidator(_project_name)]
ProjectRole = Annotated[Role, AfterValidator(_project_role)]


class ProjectMember(BaseModel):
    """A user in a project, and what it may do there."""

    user: str
    role: Role


class Project(BaseModel):
    """A registered project. Of a `private` one, only its members and administrators see
    anything. `created_at` is in UTC seconds.
    """

    name: str
    private: StrictBool = False
    created_at: float
    members: list[ProjectMember] = []


class NewProject(StrictModel):
    """A project to be registered."""

    name: ProjectName
    private: StrictBool = False


class ProjectChanges(StrictModel):
    """What is to differ."""

    private: StrictBool


class NewMember(StrictModel):
    """What a user is to be in a project."""

    role: ProjectRole = Role.MEMBER
