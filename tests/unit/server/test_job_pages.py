"""The answer to many submissions, in pieces."""

import asyncio
import json
from typing import Any, cast

import msgspec
import pytest

from gpuyard.controller.intake import Intake
from gpuyard.domain.tiers import Tiers
from gpuyard.server.app_state import AppState
from gpuyard.server.routers import jobs as router

pytestmark = pytest.mark.anyio


async def test_others_have_a_turn_after_each_piece():
    intake = Intake(Tiers({}))
    bodies = [{"command": ["true"], "name": f"n{n}"} for n in range(5)]
    jobs = [intake.read(msgspec.Raw(json.dumps(body).encode()))[0] for body in bodies]
    for job in jobs:
        job.queued_at = 1.0
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    parts: list[bytes] = []
    seen: list[int] = []
    # It asks nothing of the server about jobs that are new.
    async for part in router._page_of(cast("AppState", None), jobs, piece=2):
        parts.append(part)
        seen.append(turns)
    beside.cancel()
    page: dict[str, Any] = json.loads(b"".join(parts))
    assert [item["name"] for item in page["items"]] == [f"n{n}" for n in range(5)]
    assert len(set(seen)) >= 3, "one for each piece"
