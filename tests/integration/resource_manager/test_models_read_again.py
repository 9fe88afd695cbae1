"""Models that are put to sleep or woken while memory is read again after a failed
commit.
"""

import asyncio
from typing import Any

import httpx
import pytest

from gpuyard.domain.errors import LedgerError
from tests.integration.resource_manager.conftest import Managed
from tests.support.ledger import failing_commits
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


class Server:
    """Answers gpuyard without a socket, so that a few turns of the event loop are
    enough for all that can happen. It falls asleep once it `may_sleep`. `asked`: the
    paths.
    """

    def __init__(self, instance: Managed) -> None:
        self.asleep = False
        self.may_sleep = asyncio.Event()
        self.asked: list[str] = []
        self.instance = instance
        self.models: Any = instance.manager.residents.servers
        self.models._client = httpx.AsyncClient(transport=httpx.MockTransport(self))

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.asked.append(path)
        if path == "/sleep":
            await self.may_sleep.wait()
        if path in ("/sleep", "/wake"):
            self.asleep = path == "/sleep"
        return httpx.Response(200, json={"is_sleeping": self.asleep})

    async def load(self) -> Any:
        """Load the model; the resident that looks after it."""
        await self.instance.manager.models.load("chat")
        await self.is_loaded("ready")
        (resident,) = self.models.live.values()
        return resident

    async def is_loaded(self, phase: str) -> None:
        instance = self.instance
        await eventually(lambda: instance.loaded == [("chat", phase)], f"it to {phase}")


@pytest.fixture
async def server(instance: Managed) -> Server:
    await instance.manager.residents.servers.close()
    return Server(instance)


async def test_a_model_on_its_way_to_sleep_gets_no_request(
    instance: Managed, server: Server
) -> None:
    """It is awake when it is asked, and asleep a moment later."""
    server.models.sleep_or_unload(await server.load())
    await eventually(lambda: "/sleep" in server.asked, "it to be put to sleep")
    with failing_commits(instance.ledger.engine), pytest.raises(LedgerError):
        await instance.submit()
    for _ in range(200):
        await asyncio.sleep(0)
    assert instance.loaded == [("chat", "booting")]
    server.may_sleep.set()
    await server.is_loaded("asleep")


async def test_what_was_decided_before_wakes_no_model(server: Server) -> None:
    """Nobody has booked its GPU for it any more."""
    resident = await server.load()
    server.may_sleep.set()
    server.models.sleep_or_unload(resident)
    await server.is_loaded("asleep")
    server.models.load("chat", resident.gpus)
    server.models.find()
    await server.is_loaded("asleep")
    assert "/wake" not in server.asked
