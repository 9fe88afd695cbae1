"""Models, batches and prompts of the simulated world: what model servers and workers do
as processes of a host, how they are reached, and what must hold for them.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import httpx

from gpuyard.domain import wire
from gpuyard.domain.errors import GpuyardError, LedgerError
from gpuyard.domain.jobspec import JobKind
from gpuyard.gateway.replica_errors import ReplicaFailedError
from gpuyard.gateway.replica_http import ReplicaConnections
from gpuyard.resource_manager import model_servers
from tests.simulation.host import Host, Process
from tests.simulation.server import UnansweredError

if TYPE_CHECKING:
    from tests.simulation.server import Server
    from tests.simulation.world import World

GPU_GB = 15.0
MODELS: dict[str, dict[str, Any]] = {
    "chat": {
        "memory_gb": 12,
        "sleep": "/sleep",
        "wake": "/wake",
        "asleep": "/asleep",
        "wake_s": 0.5,
    },
    "small": {"memory_gb": 6, "slots": 2},
    "other": {"memory_gb": 6},
    "big": {"memory_gb": 12, "gpus": 2},
}
IDLE_S = 200.0
"""So long a GPU may be idle while something waits for it."""


class ModelServer:
    """The server of a model, from its start to the end of its process. Times are the
    world's seconds. `sick_until`: it answers 500; `mute_until`: it answers nothing.
    """

    def __init__(self, fleet: "Fleet", process: Process, model: str) -> None:
        world = fleet.world
        dice = world.dice
        self.fleet = fleet
        self.process = process
        self.model = model
        self.asleep = False
        self.ready_at = world.loop.now + dice.uniform(0.2, 3.0)
        self.sick_until = 0.0
        self.mute_until = 0.0
        if world.stormy and dice.random() < 0.3:
            self.sick_until = world.loop.now + dice.choice((3.0, 20.0))
        if world.stormy and dice.random() < 0.1:
            self.mute_until = world.loop.now + dice.choice((4.0, 30.0))

    @property
    def listens(self) -> bool:
        return self.process.alive and self.fleet.world.loop.now >= self.ready_at

    async def answer(self, request: httpx.Request) -> dict[str, Any]:
        """What it answers; raises httpx.HTTPError and `SickError`."""
        world = self.fleet.world
        if world.loop.now < self.mute_until:
            await self._while_alive(5.0)
            raise httpx.ReadTimeout("it is mute")
        match request.url.path:
            case "/health":
                return {"status": "ok"}
            case "/asleep":
                return {"is_sleeping": self.asleep}
            case "/sleep":
                await self._while_alive(world.dice.uniform(0, 0.3))
                self.asleep = True
                return {}
            case "/wake":
                self.fleet.check_room(self.process, self)
                self.asleep = False
                return {}
            case _:
                text = json.loads(request.content)["messages"][-1]["content"]
                return await self._complete(text)

    async def _complete(self, text: str) -> dict[str, Any]:
        world = self.fleet.world
        world.promises.expect(
            not self.asleep, f"{self.model} is asked {text!r} while it sleeps"
        )
        words = text.split()
        await self._while_alive(float(words[1]) if words[0] == "prompt" else 0.1)
        if world.loop.now < self.sick_until:
            raise SickError
        self.fleet.answered[text] += 1
        return {"choices": [{"message": {"content": f"re: {text}"}}]}

    async def _while_alive(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.process.over.wait()
        except TimeoutError:
            return
        raise httpx.ReadError("its process has ended")


class SickError(Exception):
    """The model's server answers with status 500."""


class _Body(httpx.AsyncByteStream):
    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._content


class _Network(httpx.AsyncBaseTransport):
    """Reaches the servers of models by their ports."""

    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(self._fleet.world.delay())
        server = self._fleet.servers.get(request.url.port or 0)
        if server is None or not server.listens:
            raise httpx.ConnectError("nobody listens there", request=request)
        try:
            body = await server.answer(request)
        except SickError:
            return httpx.Response(500, stream=_Body(b"sick"))
        return httpx.Response(200, stream=_Body(json.dumps(body).encode()))


class _Response:
    """As `ReplicaResponse`, with one part."""

    def __init__(self, status: int, content: bytes) -> None:
        self.status = status
        self.headers: dict[str, str] = {}
        self._left = content

    async def part(self) -> bytes:
        part = self._left
        self._left = b""
        return part

    def close(self) -> None:
        """It needs no end."""


class Fleet:
    """What models and batches there are. `servers`: by port, also those that ended.
    `answered`: how often each prompt was answered. `done`: the items of batches that
    workers have done.
    """

    def __init__(self, world: "World") -> None:
        dice = world.dice
        self.world = world
        self.servers: dict[int, ModelServer] = {}
        self.answered: Counter[str] = Counter()
        self.done: Counter[tuple[str, int]] = Counter()
        self.batches: dict[str, str] = {}
        self._ports = 20_000
        most = max(len(machine.host.gpus) for machine in world.machines)
        names = dice.sample(sorted(MODELS), dice.randint(1, len(MODELS)))
        self.models = {
            name: {
                "command": ["serve", name, "{port}"],
                "boot_s": 2,
                "unload_s": 1,
                "boot_timeout_s": 20,
                **MODELS[name],
            }
            for name in names
            if MODELS[name].get("gpus", 1) <= most
        }
        self.settings: dict[str, Any] = {
            "models": self.models,
            "scripts": {"count": {"memory_gb": 4, "boot_s": 0.5, "item_s": 1}},
            "residency": {
                "policy": dice.choice(("cost", "cost", "threshold", "lru")),
                "timeout_s": 60,
            },
            "resource_manager": {"cooling_s": dice.choice((0, 0, 1))},
        }

    # --- processes ---

    def begun(self, host: Host, process: Process, start: wire.StartAttempt) -> None:
        """A model's server or a worker has begun on the host."""
        world = self.world
        if start.command[0] == "serve":
            server = ModelServer(self, process, start.command[1])
            self.servers[int(start.command[-1])] = server
            if world.stormy and world.dice.random() < 0.3:
                later = world.dice.choice((0.5, 5.0, 15.0))
                world.loop.call_later(
                    later, host.exit, process, 1, None, context=world.life.context
                )
        elif start.command[0] != "sim":
            order = json.loads(start.stdin or b"{}")
            world.life.spawn(world.loop, self._work(host, process, order["batch"]))

    def is_model(self, process: Process) -> bool:
        return self.server_of(process) is not None

    def server_of(self, process: Process) -> ModelServer | None:
        for server in self.servers.values():
            if server.process is process:
                return server
        return None

    def check_room(self, process: Process, waking: ModelServer | None = None) -> None:
        """The process gets its GPUs now: no script is there unless it sleeps, and the
        memory of the models suffices.
        """
        world = self.world
        machines = [m for m in world.machines if process in m.host.live()]
        beside = [p for m in machines for p in m.host.live() if p is not process]
        for gpu in process.gpus:
            used = [p for p in beside if gpu in p.gpus]
            awake = [
                server
                for p in used
                if (server := self.server_of(p)) and not server.asleep
            ]
            scripts = [p for p in used if not self.is_model(p)]
            mine = waking or self.server_of(process)
            what = f"{process.attempt_id} on {gpu}"
            world.promises.expect(not scripts, f"{what} runs beside a script")
            if mine is None:
                world.promises.expect(not awake, f"{what} runs beside a model")
                continue
            models = [mine, *awake]
            needed = sum(MODELS[server.model]["memory_gb"] for server in models)
            world.promises.expect(needed <= GPU_GB, f"{what} has too little memory")

    async def _work(self, host: Host, process: Process, batch_id: str) -> None:
        """What a worker does: one item after the other."""
        world = self.world
        await asyncio.sleep(world.dice.uniform(0.1, 1.0))
        done: dict[str, Any] | None = None
        while process.alive:
            try:
                order = await self._take(batch_id, process.attempt_id, done)
            except (UnansweredError, LedgerError):
                await asyncio.sleep(world.dice.uniform(0.1, 1.0))
                continue
            except GpuyardError as error:
                world.note(f"a worker of {batch_id} gives up: {error}")
                host.exit(process, 3, None)
                return
            if order is None:
                host.exit(process, 0, None)
                return
            await asyncio.sleep(world.dice.uniform(0.1, 3.0))
            if world.stormy and world.dice.random() < 0.1:
                host.exit(process, 4, None)
            if process.alive:
                self.done[batch_id, order["number"]] += 1
            done = {"number": order["number"], "attempts": order["attempts"]}

    async def _take(self, batch_id: str, attempt_id: str, done: Any) -> Any:
        server = self.world.server
        if server is None or not server.ready or server.manager is None:
            raise UnansweredError
        batches = server.manager.batches
        return await server.ask(
            lambda _: batches.take(batch_id, attempt_id, done, None)
        )

    # --- promises ---

    def unfinished(self, server: "Server") -> list[str]:
        """The batches that are not over in the ledger: memory drops a batch before its
        end is committed.
        """
        return [row["id"] for row in server.ledger.queries.live_batches()]

    async def watch(self) -> None:
        """While something waits, no GPU that would do for it stays idle."""
        world = self.world
        since: dict[tuple[str, str], float] = {}
        while True:
            await asyncio.sleep(1.0)
            server = world.server
            wanted: set[tuple[str, str]] = set()
            if server and server.ready:
                wanted = set(self._idle_and_wanted(server))
            since = {key: since.get(key, world.loop.now) for key in wanted}
            for (gpu, what), begun in since.items():
                idle_s = world.loop.now - begun
                world.promises.expect(
                    idle_s < IDLE_S, f"{gpu} is idle, and {what} waits for it"
                )

    def _idle_and_wanted(self, server: "Server") -> Iterator[tuple[str, str]]:
        assert server.controller is not None and server.manager is not None
        view = server.controller.core.view
        residents = server.manager.residents
        booked = {
            gpu
            for node in view.nodes.values()
            for share in node.bookings.values()
            for gpu in share.gpu_uuids
        }
        live = residents.servers.live.values()
        booked |= {gpu for each in live if each.is_awake for gpu in each.gpus}
        idle = [each.uuid for each in view.usable_devices() if each.uuid not in booked]
        scripts = [
            job.id
            for job in view.queue.with_gpus.values()
            if job.kind != JobKind.MODEL and job.shape.gpus == 1
        ]
        models = [
            model
            for model, queue in residents.request_queues.by_model.items()
            if queue.waiting
            and not any(each.model == model for each in live)
            and residents.servers.failures[model].until < time.monotonic()
            and not residents.closed_for_batch
            and self.models[model].get("gpus", 1) == 1
        ]
        for gpu in idle:
            for what in (*scripts[:1], *models[:1]):
                yield gpu, what

    async def end(self) -> None:
        """Unload all models once all is over: no slot was lost, and nobody waits."""
        world = self.world
        server = world.server
        assert server is not None and server.manager is not None
        manager = server.manager
        for model, queue in manager.residents.request_queues.by_model.items():
            busy = sum(replica.busy for replica in queue.replicas.values())
            world.promises.expect(not busy, f"slots of {model} are lost")
            world.promises.expect(not len(queue.waiting), f"somebody waits for {model}")
            await server.ask(lambda _, name=model: manager.models.unload(name))
        deadline = world.loop.now + 60.0
        while manager.residents.servers.live:
            if world.loop.now > deadline:
                world.promises.broken("models do not end")
                return
            await asyncio.sleep(1.0)
        for key, batch_id in self.batches.items():
            self._check_batch(server, key, batch_id)

    def _check_batch(self, server: "Server", key: str, batch_id: str) -> None:
        promises = self.world.promises
        row = server.ledger.queries.batch(batch_id)
        if row is None:
            promises.broken(f"the batch {batch_id} ({key}) is lost")
            return
        ended = ("completed", "failed", "cancelled")
        promises.expect(row["state"] in ended, f"{batch_id} is {row['state']}")
        for item in server.ledger.queries.items_of(batch_id):
            promises.expect(
                item["state"] in ended,
                f"item {item['number']} of {batch_id} is {item['state']}",
            )
            if item["state"] == "completed":
                promises.expect(
                    self.done[batch_id, item["number"]] > 0,
                    f"item {item['number']} of {batch_id} completed, nobody did it",
                )

    # --- the product in this world ---

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The product's clock and network are those of this world."""
        loop = self.world.loop
        client = httpx.AsyncClient

        def made(**_: Any) -> httpx.AsyncClient:
            return client(transport=_Network(self), trust_env=False)

        async def post(_: Any, url: str, body: bytes, *_more: Any) -> _Response:
            request = httpx.Request("POST", url, content=body)
            try:
                response = await _Network(self).handle_async_request(request)
            except httpx.HTTPError as error:
                raise ReplicaFailedError(str(error)) from None
            return _Response(response.status_code, await response.aread())

        with (
            mock.patch.object(time, "monotonic", lambda: 1000.0 + loop.now),
            mock.patch.object(ReplicaConnections, "post", post),
            mock.patch.object(httpx, "AsyncClient", made),
            mock.patch.object(model_servers, "free_port", self._free_port),
        ):
            yield

    def _free_port(self) -> int:
        self._ports += 1
        return self._ports
