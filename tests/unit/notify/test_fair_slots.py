"""Slots for deliveries: who has many waits for who has few."""

import asyncio

import pytest

from gpuyard.notify.fair_slots import FairSlots
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Work:
    """Tasks that hold a slot until they are told to leave it."""

    def __init__(self, count: int, per_owner: int) -> None:
        self.slots = FairSlots(count, per_owner)
        self.inside: list[str] = []
        self.leave = asyncio.Semaphore(0)
        self.tasks: list[asyncio.Task[None]] = []

    def begin(self, *names: str) -> None:
        """The first letter of a name is its owner."""
        self.tasks += [asyncio.create_task(self._hold(name)) for name in names]

    async def _hold(self, name: str) -> None:
        async with self.slots.slot(name[0]):
            self.inside.append(name)
            await self.leave.acquire()

    async def until(self, *names: str) -> None:
        await eventually(lambda: self.inside == list(names), f"{names} to have come")


async def test_one_owner_leaves_room_for_others() -> None:
    work = Work(count=3, per_owner=2)
    work.begin("a1", "a2", "a3", "b1")
    await work.until("a1", "a2", "b1")
    for _ in work.tasks:
        work.leave.release()
    await asyncio.gather(*work.tasks)
    assert work.inside[-1] == "a3"


async def test_owners_who_wait_take_turns() -> None:
    work = Work(count=1, per_owner=1)
    work.begin("a1", "a2", "a3", "b1", "b2")
    came = ["a1", "b1", "a2", "b2", "a3"]
    for number in range(1, len(came) + 1):
        await work.until(*came[:number])
        work.leave.release()


async def test_who_waits_no_longer_takes_no_slot() -> None:
    work = Work(count=1, per_owner=1)
    work.begin("a1", "b1", "c1")
    await work.until("a1")
    work.tasks[1].cancel()
    work.leave.release()
    await work.until("a1", "c1")
    work.tasks[2].cancel()
    await asyncio.gather(*work.tasks, return_exceptions=True)
    work.begin("b2")
    await work.until("a1", "c1", "b2")
    work.leave.release()
