"""A rented provider for the conformance suite. There is no server: a small instance plays
its part, behind the real listeners at which machines join and agents dial.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpuyard.controller.joined_nodes import JoinedMachine
from gpuyard.domain import wire
from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.errors import RefusedError
from gpuyard.domain.ids import new_id
from gpuyard.domain.joining import Machine
from gpuyard.providers.conformance import Subject
from gpuyard.providers.instances.provider import RentedProvider
from gpuyard.providers.instances.renting_instance import Invited
from gpuyard.server.agents_door import AgentsDoor
from gpuyard.server.authority import Authority
from tests.support.ports import free_port

# One case starts fifty machines, each of which is several processes.
_PATIENCE_S = 600.0


class Caller:
    """A machine at the other end of a link (`providers.callers.Caller`)."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.machine = machine
        self.name = name

    def is_removed(self) -> bool:
        return False


class SmallInstance:
    """The instance as its provider and its listeners see it."""

    epoch = 1
    installation = "lab"

    def __init__(self, folder: Path) -> None:
        authority = Authority.of(folder / "authority")
        core = SimpleNamespace(clock=lambda: 0.0)
        controller: Any = SimpleNamespace(
            core=core,
            joined_nodes=SimpleNamespace(
                join=self.join, node_of=self.member, open_until=1e12
            ),
            serve_agent=self.serve_agent,
        )
        self.door = AgentsDoor(f"127.0.0.1:{free_port(2)}", authority, controller)
        self.provider: RentedProvider | None = None
        self._invited: set[str] = set()
        self._orders: dict[str, AttemptOrder] = {}
        # By attempt the node that has joined, and by secret the attempt.
        self._nodes: dict[str, str] = {}
        self._secrets: dict[str, str] = {}
        self._members: dict[str, Any] = {}
        self._started: set[str] = set()

    # --- for the listeners ---

    def member(self, fingerprint: str) -> Any:
        return self._members.get(fingerprint)

    async def join(self, secret: str, *words: Any) -> JoinedMachine:
        attempt_id = self._secrets.get(secret, "")
        if attempt_id not in self._orders:
            raise RefusedError("There is no such invitation.")
        node_id = new_id("node")
        certificate, fingerprint = words[-1](node_id)
        self._nodes[attempt_id] = node_id
        self._members[fingerprint] = SimpleNamespace(id=node_id, title=attempt_id)
        return JoinedMachine(node_id, attempt_id, certificate)

    async def serve_agent(self, reader: Any, writer: Any, machine: Machine) -> None:
        assert self.provider
        caller: Any = Caller(machine, self.attempt_on(machine.node_id))
        await self.provider.agents.link.serve(reader, writer, caller)

    # --- for the provider ---

    def refuse_without_door(self) -> None:
        pass

    async def invite(self, order: AttemptOrder, name: str, for_s: float) -> Invited:
        self._invited.add(order.attempt_id)
        self._orders[order.attempt_id] = order
        secret = self.door.secret_for(order.attempt_id)
        self._secrets[secret] = order.attempt_id
        url = await self.door.url_for_machines()
        return Invited(url, f"{self.door.fingerprint}.{secret}")

    def owns(self, owner: str) -> bool:
        # Also after the end: its output is still asked for.
        return owner in self._invited

    def is_recorded(self, attempt_id: str) -> bool:
        return attempt_id not in self._orders

    def attempt_of(self, reference: str) -> str:
        return ""

    def node_of(self, attempt_id: str) -> str:
        return self._nodes.get(attempt_id, "")

    def attempt_on(self, node_id: str) -> str:
        found = (key for key, known in self._nodes.items() if known == node_id)
        return next(found, "")

    def is_wanted(self, attempt_id: str) -> bool:
        return attempt_id in self._orders

    def has_started(self, attempt_id: str) -> bool:
        return attempt_id in self._started

    async def order(self, attempt_id: str) -> AttemptOrder | None:
        return self._orders.get(attempt_id)

    async def place(
        self, attempt_id: str, node_id: str, gpu_uuids: Sequence[str]
    ) -> None:
        assert self._nodes[attempt_id] == node_id

    def believable(self, end: wire.Ended) -> wire.Ended:
        self._orders.pop(end.attempt_id, None)  # it is recorded
        return end

    async def joined(self, provider: str, hello: Any, about: str) -> wire.Welcome:
        return wire.Welcome(self.epoch)

    async def left(self, node_id: str) -> None:
        pass

    async def claimed(self, node_id: str, address: str) -> None:
        pass

    async def reported(self, node_id: str, bodies: Sequence[Any]) -> None:
        for report in bodies:
            if isinstance(report.body, wire.Started):
                self._started.add(report.body.attempt_id)

    async def forget(self, attempt_id: str) -> None:
        self._invited.discard(attempt_id)
        self._orders.pop(attempt_id, None)


@asynccontextmanager
async def rented_subject(
    folder: Path, provider: RentedProvider, end_machines: Callable[[], object]
) -> AsyncGenerator[Subject]:
    """The provider, attached to an instance of its own in `folder`; no machine is left
    afterwards.
    """
    instance = SmallInstance(folder)
    provider.attach(instance)
    instance.provider = provider
    sink: Any = None
    await instance.door.open()
    await provider.start(sink)
    try:
        yield Subject(provider, pause_s=0.1, patience_s=_PATIENCE_S)
    finally:
        await provider.close()
        await instance.door.close()
        await asyncio.to_thread(end_machines)
