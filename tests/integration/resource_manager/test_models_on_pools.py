"""Models and batches that bring nodes of pools, work there, and go before they go."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gpuyard.controller import pool_calls, pools
from gpuyard.controller.controller import Controller
from gpuyard.domain import wire
from gpuyard.domain.batches import BatchMode, BatchSpec, ItemSpec
from gpuyard.gateway.request_queue import QueuedRequestTerms
from gpuyard.resource_manager.manager import ResourceManager
from tests.integration.resource_manager.conftest import Chat, ModelServer
from tests.support.fake_pool import Pooled
from tests.support.fake_provider import FakeAttempt, FakeHost
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio
MODEL = {"command": ["serve", "{port}"], "memory_gb": 12}


class PooledModels(Pooled):
    """The server's machine has no GPU. What runs on the pool's nodes listens here."""

    def __init__(self, folder: Path, pool: dict[str, Any]) -> None:
        self.chat = Chat()
        self.chat.may_answer.set()
        self.servers: dict[str, ModelServer] = {}
        super().__init__(
            folder,
            pool,
            models={"chat": {**MODEL, "joined": True}, "home": MODEL},
            scripts={"count": {"memory_gb": 4, "joined": True}},
        )

    def extend(self, controller: Controller) -> None:
        super().extend(controller)
        controller.launching.worker_token = _token
        controller.node_access.worker_token = _token
        self.manager = ResourceManager(controller)

    async def stop(self) -> None:
        await self.manager.close()
        await super().stop()

    def attempts_here(self) -> list[tuple[FakeHost, str, FakeAttempt]]:
        return [
            (host, attempt_id, attempt)
            for host in self.hosts.values()
            for attempt_id, attempt in list(host.attempts.items())
        ]

    async def run_servers(self) -> None:
        """Run a server for each attempt of a model."""
        while True:
            for _, attempt_id, attempt in self.attempts_here():
                server = self.servers.get(attempt_id)
                is_model = attempt.order.command[:1] == ("serve",)
                if attempt.live and is_model and server is None:
                    self.servers[attempt_id] = server = ModelServer(self.chat)
                    await server.start(int(attempt.order.command[-1]))
                if not attempt.live and server and server.server:
                    server.server.close()
                    server.server = None
            await asyncio.sleep(0.01)

    async def ask(self, text: str) -> str:
        """What the model `chat` answers."""
        queues = self.manager.residents.request_queues

        def another() -> Awaitable[Any]:
            terms = QueuedRequestTerms(deadline=time.monotonic() + 60.0)
            return queues.acquire("chat", terms)

        body = {"messages": [{"role": "user", "content": text}]}
        answer = await self.manager.replicas.ask(
            await another(), "chat/completions", body, another
        )
        said = b"".join([part async for part in answer.parts()])
        return str(json.loads(said)["choices"][0]["message"]["content"])


def _token(attempt_id: str, fence: int, batch_id: str) -> str:
    return f"{attempt_id} {fence} {batch_id}"


Make = Callable[..., Awaitable[PooledModels]]


@pytest.fixture
async def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    """Makes an instance with a pool of these settings."""
    monkeypatch.setattr(pools, "LOOK_AGAIN_S", 0.01)
    monkeypatch.setattr(pool_calls, "REPEAT_S", 0.05)
    made: list[tuple[PooledModels, asyncio.Task[None]]] = []

    async def start(**pool: Any) -> PooledModels:
        instance = PooledModels(tmp_path, pool)
        await instance.start()
        made.append((instance, asyncio.create_task(instance.run_servers())))
        return instance

    yield start
    for instance, servers in made:
        servers.cancel()
        instance.check()
        await instance.stop()


async def test_a_request_brings_a_node_and_a_model_that_nobody_uses_goes_before_it(
    make: Make,
):
    instance = await make(max=2)
    assert await _boots_for(instance, instance.ask("hello")) == "re: hello"
    assert "home needs a GPU" in str(instance.manager.models.why_not("home"))
    # No program but its own gets its requests.
    assert instance.provider.own_ports == {True}
    # The node has a model, and is idle all the same.
    instance.let_idle_go()
    await instance.until_states()
    (row,) = instance.rows()
    assert row["why"].startswith("nothing ran on it for ")
    (host,) = [host for host in instance.hosts.values() if host.gpu_count]
    assert [reason for _, reason in host.stops] == ["evicted"]
    assert not instance.manager.residents.servers.failures["chat"].reason


async def test_a_model_answers_before_its_node_is_drained(make: Make):
    instance = await make(max=1)
    instance.chat.may_answer.clear()
    asking = asyncio.create_task(instance.ask("hello"))
    await instance.boot()
    # The first request is the warm-up of the server.
    instance.chat.may_answer.set()
    assert await asking == "re: hello"
    instance.chat.may_answer.clear()
    asking = asyncio.create_task(instance.ask("again"))
    await eventually(lambda: "again" in instance.chat.asked, "the request")
    (row,) = instance.rows()
    instance.cloud.put(row["id"], leaving=True, why="spot")
    await instance.until_states("draining")
    (resident,) = instance.manager.residents.servers.live.values()
    await eventually(lambda: resident.must_leave, "the model to be told to leave")
    instance.chat.may_answer.set()
    assert await asking == "re: again"
    await instance.until_states()


async def test_a_batch_brings_a_node_and_its_workers_ask_by_their_agent(
    make: Make, tmp_path: Path
):
    instance = await make(max=1)
    items = tuple(ItemSpec(path=f"/items/{number}") for number in range(3))
    spec = BatchSpec(
        script="count",
        items=items,
        source="/items",
        results=str(tmp_path / "results"),
        mode=BatchMode.SHARED,
    )
    batch = (await instance.manager.batches.submit(spec))["batch_id"]
    problem = instance.manager.batches.summary(batch)["problem"]
    assert "the pool warm" in problem, problem
    await instance.boot()
    await _work(instance, batch)
    await eventually(
        lambda: instance.manager.batches.summary(batch)["state"] == "completed",
        "the batch",
    )
    instance.let_idle_go()
    await instance.until_states()


async def test_no_node_comes_for_a_batch_whose_turn_it_is_not(
    make: Make, tmp_path: Path
):
    instance = await make(max=2)
    batches = instance.manager.batches

    def spec(mode: BatchMode, *names: str) -> BatchSpec:
        items = tuple(ItemSpec(path=f"/items/{name}") for name in names)
        results = str(tmp_path / mode)
        return BatchSpec(
            script="count", items=items, source="/items", results=results, mode=mode
        )

    alone = (await batches.submit(spec(BatchMode.EXCLUSIVE, "a")))["batch_id"]
    await instance.boot()
    await eventually(lambda: batches.summary(alone)["workers"] == 1, "its worker")
    needs = instance.controller.pools._needs
    assert needs
    await eventually(lambda: len(needs.wishes()) == 1, "a wish")
    shared = (await batches.submit(spec(BatchMode.SHARED, "b", "c")))["batch_id"]
    assert batches.summary(shared)["counts"]["queued"] == 2
    assert len(needs.wishes()) == 1


async def _boots_for(instance: PooledModels, asked: Awaitable[str]) -> str:
    asking = asyncio.ensure_future(asked)
    await instance.boot()
    return await asking


async def _work(instance: PooledModels, batch: str) -> None:
    """Let the worker of a batch do all items, as its agent passes them on."""
    host, attempt_id, attempt = await eventually(
        lambda: next((each for each in instance.attempts_here() if each[2].live), None),
        "a worker",
    )
    order = json.loads(attempt.order.stdin or b"{}")
    access = instance.controller.node_access

    async def take(token: str, done: wire.ItemDone | None = None) -> wire.ItemGiven:
        request = wire.TakeItem(batch, attempt_id, token, done)
        return await access.take_item(host.node_id, request)

    assert "not the token" in (await take("other")).refused
    other = wire.TakeItem(batch, attempt_id, order["token"])
    assert (await access.take_item("node_1", other)).refused
    given = await take(order["token"])
    numbers: list[int] = []
    while given.item:
        item = json.loads(given.item)
        numbers.append(item["number"])
        done = wire.ItemDone(item["number"], item["attempts"])
        given = await take(order["token"], done)
    assert sorted(numbers) == [1, 2, 3]
    host.ended(attempt_id, exit_code=0)
    await instance.provider.deliver(host.node_id)
