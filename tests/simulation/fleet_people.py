"""The people of a world with models: they also ask models, leave prompts as jobs, and
submit batches.
"""

import asyncio
from collections.abc import MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fastapi import Request

from gpuyard.domain.batches import BatchMode, BatchSpec, ItemSpec
from gpuyard.gateway.openai import Gateway
from gpuyard.resource_manager.manager import ResourceManager
from tests.simulation.people import People
from tests.simulation.server import UnansweredError

if TYPE_CHECKING:
    from tests.simulation.world import World

_WHAT = (
    "submit",
    "submit",
    "prompts",
    "prompts",
    "ask",
    "ask",
    "batch",
    "cancel",
    "resume",
    "unload",
)


class FleetPeople(People):
    """`models`: what they may ask for."""

    def __init__(self, world: "World", models: list[str]) -> None:
        super().__init__(world)
        self.models = models

    async def _act(self, at: float) -> None:
        what = self.dice.choice(_WHAT)
        if what in ("submit", "cancel", "resume"):
            await super()._act(at)
            return
        await asyncio.sleep(at)
        if what == "batch":
            await self._batch()
        elif self.models:
            model = self.dice.choice(self.models)
            match what:
                case "prompts":
                    await self._submit(self._prompts(model))
                case "ask":
                    await self._ask(model)
                case _:
                    await self._unload(model)

    def _body(self, position: int) -> dict[str, Any]:
        """A job that this host can hold."""
        body = super()._body(position)
        most = max(len(machine.host.gpus) for machine in self.world.machines)
        if body["resources"].get("gpus", 0) > most:
            body["resources"] = {"gpus": most}
        # Urgent prompts and jobs may take its place.
        if self.keys % 4 == 0:
            body["preemptible"] = True
        return body

    def _prompts(self, model: str) -> list[dict[str, Any]]:
        dice = self.dice
        gpus = [gpu for machine in self.world.machines for gpu in machine.host.gpus]
        bodies: list[dict[str, Any]] = []
        for _ in range(dice.choice((1, 3, 10))):
            self.keys += 1
            body: dict[str, Any] = {
                "prompt": f"prompt {dice.choice((0.05, 0.5, 3.0))} {self.keys}",
                "model": model,
                "priority": dice.choice((1, 3, 5)),
                "retry_count": dice.choice((0, 2)),
                "idempotency_key": f"key-{self.keys}",
            }
            if dice.random() < 0.2:
                body["timeout_s"] = dice.choice((1.0, 5.0))
            if gpus and dice.random() < 0.3:
                uuid = dice.choice(gpus)
                body["resources"] = {"gpus": {"uuid": [uuid]}}
            bodies.append(body)
        return bodies

    async def _ask(self, model: str) -> None:
        """A request of /v1; some leave before they are answered."""
        self.keys += 1
        text = f"prompt {self.dice.choice((0.05, 1.0))} {self.keys}"
        patience_s = self.dice.choice((1.0, 100.0, 100.0))
        server = self.world.server
        if server is None or not server.ready or server.manager is None:
            return
        manager = server.manager
        with suppress(UnansweredError):
            await server.ask(lambda _: _request(manager, model, text, patience_s))

    async def _unload(self, model: str) -> None:
        server = self.world.server
        if server is None or not server.ready or server.manager is None:
            return
        models = server.manager.models
        await self._until_answered(
            lambda _: models.unload(model), f"unload {model}", patient=False
        )

    async def _batch(self) -> None:
        dice = self.dice
        if not any(machine.host.gpus for machine in self.world.machines):
            return
        self.keys += 1
        key = f"batch-{self.keys}"
        items = dice.choice((1, 4, 9))
        spec = BatchSpec(
            script="count",
            items=tuple(ItemSpec(path=f"/items/{n}") for n in range(1, items + 1)),
            source=f"/items/{key}",
            results=str(self.world.ledger_path.parent / "results"),
            mode=dice.choice(
                (BatchMode.EXCLUSIVE, BatchMode.EXCLUSIVE, BatchMode.SHARED)
            ),
            priority=dice.choice((1, 3, 5)),
            idempotency_key=key,
        )
        is_taken = False
        while not is_taken:
            await asyncio.sleep(dice.uniform(0.1, 2.0))
            is_taken = await self._submit_batch(key, spec)

    async def _submit_batch(self, key: str, spec: BatchSpec) -> bool:
        """Whether the server has taken it."""
        server = self.world.server
        if server is None or server.manager is None:
            return False
        batches = server.manager.batches
        shown = await self._until_answered(
            lambda _: batches.submit(spec), key, patient=False
        )
        if shown is None:
            return False
        assert self.world.fleet is not None
        self.world.fleet.batches[key] = shown["batch_id"]
        return True


async def _request(
    manager: ResourceManager, model: str, text: str, patience_s: float
) -> None:
    """As a client that leaves after so many seconds."""
    queues = manager.residents.request_queues
    gateway = Gateway(queues, manager.replicas, 60.0, manager.models.why_not)
    body = f'{{"model": "{model}", "messages": [{{"content": "{text}"}}]}}'.encode()
    messages = [{"type": "http.request", "body": body}]

    async def receive() -> MutableMapping[str, Any]:
        if messages:
            return messages.pop()
        await asyncio.sleep(patience_s)
        return {"type": "http.disconnect"}

    async def send(_: MutableMapping[str, Any]) -> None:
        await asyncio.sleep(0)

    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "headers": [],
        "asgi": {"spec_version": "2.4"},
    }
    response = await gateway.answer("chat/completions", Request(scope, receive))
    await response(scope, receive, send)
