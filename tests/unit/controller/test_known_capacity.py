"""What a server that has just started waits for."""

import asyncio

import pytest

from gpuyard.controller import known_capacity
from gpuyard.controller.known_capacity import KnownCapacity

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def begun(work) -> asyncio.Task[None]:
    task = asyncio.create_task(work)
    for _ in range(5):
        await asyncio.sleep(0)
    return task


async def test_a_listing_waits_for_a_node_whatever_providers_have_said():
    capacity = KnownCapacity(lambda: ["slurm"])
    capacity.heard_from("slurm")
    listing = await begun(capacity.until_node())
    assert not listing.done()
    capacity.node_joined()
    await listing


async def test_a_submission_waits_for_a_node_and_all_providers():
    capacity = KnownCapacity(lambda: ["slurm", "kubernetes"])
    capacity.node_joined()
    submission = await begun(capacity.until_complete())
    capacity.heard_from("slurm")
    await asyncio.sleep(0)
    assert not submission.done()
    capacity.heard_from("kubernetes")
    await submission


async def test_nobody_waits_for_ever(monkeypatch):
    monkeypatch.setattr(known_capacity, "_LISTING_S", 0.05)
    monkeypatch.setattr(known_capacity, "_SUBMISSION_S", 0.05)
    capacity = KnownCapacity(lambda: ["slurm"])
    await capacity.until_node()
    await capacity.until_complete()
