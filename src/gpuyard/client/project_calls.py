"""Calls about projects and their members; see `calls`."""

from gpuyard.client.answers import items_of
from gpuyard.client.calls import Call
from gpuyard.client.segments import segment
from gpuyard.domain.projects import Project


def projects() -> Call[list[Project]]:
    """The projects that you may see, by name."""
    return Call("GET", "/api/v1/projects", items_of(Project))


def project(name: str) -> Call[Project]:
    """One project."""
    return Call("GET", _path(name), Project.model_validate)


def add_project(name: str, *, private: bool) -> Call[Project]:
    """Register a project."""
    body = {"name": name, "private": private}
    return Call("POST", "/api/v1/projects", Project.model_validate, body=body)


def update_project(name: str, *, private: bool) -> Call[Project]:
    """Make it private, or open."""
    body = {"private": private}
    return Call("PATCH", _path(name), Project.model_validate, body=body, done_once=True)


def set_project_member(name: str, user: str, role: str) -> Call[Project]:
    """Make a user a member, or give it another role."""
    path = f"{_path(name)}/members/{segment(user)}"
    read = Project.model_validate
    return Call("PUT", path, read, body={"role": role}, done_once=True)


def remove_project_member(name: str, user: str) -> Call[Project]:
    """Remove a member."""
    path = f"{_path(name)}/members/{segment(user)}"
    return Call("DELETE", path, Project.model_validate)


def _path(name: str) -> str:
    return f"/api/v1/projects/{segment(name)}"
