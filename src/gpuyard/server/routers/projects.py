"""`/api/v1/projects`: registered projects, and who is in them."""

from typing import Annotated

from fastapi import Body, Path, Request
from pydantic import BaseModel

from gpuyard.controller.projects import LiveProject
from gpuyard.domain.projects import NewMember, NewProject, Project, ProjectChanges
from gpuyard.domain.users import UserName
from gpuyard.server.api_router import api_router
from gpuyard.server.app_state import AppState
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.permissions import identity_of

router = api_router("/projects", tag="users")
User = Annotated[UserName, Path(description="The name of a user.")]


class ProjectPage(BaseModel):
    """The projects that you may see, by name."""

    items: list[Project]
    next: str | None = None


@router.get("")
async def list_projects(request: Request, app_state: TheAppState) -> ProjectPage:
    """The registered projects that you may see."""
    projects = app_state.controller.projects
    found = projects.visible_to(identity_of(request.scope))
    return ProjectPage(items=[project.shown() for project in found])


@router.post("", status_code=201)
async def add_project(app_state: TheAppState, body: NewProject) -> Project:
    """Register a project. From now on, only its members submit jobs to it, and
    maintainers of the instance; if it is `private`, only they see what is of it.
    """
    return (await app_state.controller.projects.add(body)).shown()


@router.get("/{name}")
async def show_project(request: Request, app_state: TheAppState, name: str) -> Project:
    """A project with its members."""
    return _find(request, app_state, name).shown()


@router.patch("/{name}")
async def update_project(
    request: Request, app_state: TheAppState, name: str, body: ProjectChanges
) -> Project:
    """Make a project private, or open; from the next request on."""
    project = _find(request, app_state, name)
    projects = app_state.controller.projects
    return (await projects.update(project, private=body.private)).shown()


@router.put("/{name}/members/{user}")
async def set_member(
    request: Request,
    app_state: TheAppState,
    name: str,
    user: User,
    body: Annotated[NewMember | None, Body()] = None,
) -> Project:
    """Make a user a member of a project, or give it another role there. Administrators
    and maintainers of the project do.
    """
    project = _managed(request, app_state, name)
    role = (body or NewMember()).role
    projects = app_state.controller.projects
    return (await projects.set_member(project, user, role)).shown()


@router.delete("/{name}/members/{user}")
async def remove_member(
    request: Request, app_state: TheAppState, name: str, user: User
) -> Project:
    """Remove a user from a project. Its jobs stay there, and run on."""
    project = _managed(request, app_state, name)
    return (await app_state.controller.projects.remove_member(project, user)).shown()


def _find(request: Request, app_state: AppState, name: str) -> LiveProject:
    return app_state.controller.projects.find(name, identity_of(request.scope))


def _managed(request: Request, app_state: AppState, name: str) -> LiveProject:
    """The project; ForbiddenError for who may not say who is in it."""
    project = _find(request, app_state, name)
    app_state.controller.access.check_manages(identity_of(request.scope), project)
    return project
