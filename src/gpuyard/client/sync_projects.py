"""The methods of `Client` for projects and their members."""

from typing import TypeVar

from gpuyard.client import project_calls
from gpuyard.client.calls import Call
from gpuyard.domain.projects import Project
from gpuyard.domain.users import Role

T = TypeVar("T")


class ProjectMethods:
    """Registered projects, and who is in them."""

    def call(self, call: Call[T]) -> T:
        """Carry one call."""
        raise NotImplementedError

    def projects(self) -> list[Project]:
        """The projects that you may see, by name."""
        return self.call(project_calls.projects())

    def project(self, name: str) -> Project:
        """One project with its members; NotFoundError."""
        return self.call(project_calls.project(name))

    def add_project(self, name: str, *, private: bool = False) -> Project:
        """Register a project; RefusedError if there is one of this name."""
        return self.call(project_calls.add_project(name, private=private))

    def update_project(self, name: str, *, private: bool) -> Project:
        """Make a project private, or open; NotFoundError."""
        return self.call(project_calls.update_project(name, private=private))

    def set_project_member(
        self, name: str, user: str, role: str = Role.MEMBER
    ) -> Project:
        """Make a user a member, or give it another role; NotFoundError."""
        return self.call(project_calls.set_project_member(name, user, role))

    def remove_project_member(self, name: str, user: str) -> Project:
        """Remove a member; NotFoundError."""
        return self.call(project_calls.remove_project_member(name, user))
