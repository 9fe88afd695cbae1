"""Retention by the hour: what fails is tried again, and a clock that jumps is not
believed.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from gpuyard.server import history
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No hour is waited for."""
    monkeypatch.setattr(history, "_LOOK_S", 0.0)
    monkeypatch.setattr(history, "_PASS_S", 0.0)


@asynccontextmanager
async def running(
    run: Callable[[], Awaitable[Any]],
) -> AsyncIterator[asyncio.Task[None]]:
    """The loop of a server, of which `run` is a pass."""
    retention = SimpleNamespace(run=run)
    app_state: Any = SimpleNamespace(
        leads=True,
        settings=SimpleNamespace(ledger=SimpleNamespace(keep_events=1)),
        queries=SimpleNamespace(journal_length=lambda: 1000),
        controller=SimpleNamespace(retention=retention),
    )
    task = asyncio.create_task(history.remove_history(app_state))
    await asyncio.sleep(0)
    yield task
    task.cancel()


async def test_no_failure_is_the_last_pass() -> None:
    passes: list[bool] = []

    async def run() -> None:
        passes.append(True)
        raise TypeError("nobody thought of this")

    async with running(run) as task:
        await eventually(lambda: len(passes) > 1 or task.done(), "the next pass")
        assert not task.done()


async def test_a_pass_after_a_jump_of_the_clock_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[list[str]] = []

    with capture_logs() as entries:

        async def run() -> None:
            told.append([entry["event"] for entry in entries])

        real_time = time.time
        async with running(run):
            monkeypatch.setattr(time, "time", lambda: real_time() + 365 * 86400)
            await eventually(lambda: told, "a pass")
    assert told[0] == ["the clock was set: no history is removed for an hour"]
