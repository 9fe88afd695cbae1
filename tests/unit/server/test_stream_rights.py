"""How long a stream to a running job goes on, for who has opened it."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuyard.controller.access import Access
from gpuyard.controller.controller import Controller
from gpuyard.controller.users import Identity, Users
from gpuyard.domain.users import Role
from gpuyard.server.edge import is_still_admitted
from gpuyard.server.permissions import AGAIN_KEY, opens_for_as_long


@pytest.mark.parametrize(
    ("submitter", "role", "goes_on"),
    [
        ("ben", Role.ADMINISTRATOR, True),
        ("ben", Role.MAINTAINER, False),
        ("ben", Role.MEMBER, False),
        ("ana", Role.MEMBER, True),
        ("ana", Role.VIEWER, False),
    ],
)
def test_who_has_another_role_by_now_keeps_only_what_it_may_open(
    submitter: str, role: Role, goes_on: bool
) -> None:
    queries = SimpleNamespace(
        submitters_of=lambda _: {"job_1": submitter},
        projects_of_jobs=lambda _: {"job_1": None},
    )
    access = Access(cast(Users, None), cast(Any, SimpleNamespace(by_name={})))
    controller = SimpleNamespace(core=SimpleNamespace(queries=queries), access=access)
    scope: dict[str, Any] = {
        "type": "websocket",
        "path": "/api/v1/jobs/job_1/exec",
        AGAIN_KEY: lambda: Identity("ana", role),
    }
    opens_for_as_long(scope, cast(Controller, controller), "job_1", "ana")
    assert is_still_admitted(scope) == goes_on
