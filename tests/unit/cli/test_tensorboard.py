"""What `gpuyard tensorboard` submits."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuyard.cli.tensorboard import body_over
from gpuyard.domain.errors import RefusedError
from gpuyard.domain.users import ProjectRights

MAY = ProjectRights(submits=True)


def a_job(project: str | None, **spec: str) -> Any:
    return SimpleNamespace(
        name="a",
        id="job_000001",
        spec={"workdir": "/work", **spec},
        started_at=1.0,
        ended_at=2.0,
        provider="docker",
        project=project,
        code=None,
    )


def client(elsewhere: ProjectRights = MAY) -> Any:
    """Of somebody in the projects `hidden` and `secret`, which are private, and not in
    `closed`.
    """
    projects = {"hidden": MAY, "secret": MAY, "closed": ProjectRights()}
    listed = [SimpleNamespace(name=name, private=name != "closed") for name in projects]
    found = {"project": "hidden", "name": "runs", "path": "/kept/hidden/runs"}
    return cast(
        "Any",
        SimpleNamespace(
            who_am_i=lambda: SimpleNamespace(projects=projects, elsewhere=elsewhere),
            projects=lambda: listed,
            call=lambda _: [found],
        ),
    )


def project_of(*projects: str | None, **given: Any) -> str | None:
    jobs = [a_job(project) for project in projects]
    return body_over(client(**given), jobs, 60.0).get("project")


def test_it_is_of_the_project_of_the_jobs() -> None:
    """Else whoever sees it would see more than of the jobs."""
    assert project_of(None) is None
    assert project_of("open") == "open"
    assert project_of("open", elsewhere=ProjectRights()) is None
    assert project_of("closed") is None
    assert project_of("open", "hidden") == "hidden"
    with pytest.raises(RefusedError, match="hidden, secret"):
        project_of("secret", "hidden")


def test_it_finds_the_workspaces_of_the_jobs() -> None:
    job = a_job("hidden", workspace="runs")
    command = body_over(client(), [job], 60.0)["command"]
    assert command[4::4] == ["a-000001", "a-000001/workspace"]
    assert command[5::4] == ["/work", "/kept/hidden/runs"]
    # One of the same name in another project is none of its own.
    other = a_job("open", workspace="runs")
    assert body_over(client(), [other], 60.0)["command"][4::4] == ["a-000001"]
