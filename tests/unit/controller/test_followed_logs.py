"""Following the output of a job to its end."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuyard.controller.core import Core
from gpuyard.controller.logs import Logs
from gpuyard.providers.configured import Providers

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_job_that_ends_while_its_output_ends_is_not_waited_for() -> None:
    states = iter(["running", "completed", "completed"])
    queries = SimpleNamespace(
        job=lambda _: {"state": next(states)}, attempts_of=lambda _: {}
    )
    waited: list[float] = []

    async def wait(timeout_s: float) -> None:
        waited.append(timeout_s)

    core = cast(Core, cast(Any, SimpleNamespace(queries=queries)))
    logs = Logs(core, Providers(), wait, Path)
    assert [part async for part in logs.read("job_1", follow=True)] == []
    assert waited == []
