"""The conformance suite on rented machines, of a cloud whose machines really join.

There is no server here: a small instance plays its part, behind the real listeners at
which machines join and agents dial.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuyard.controller.joined_nodes import JoinedMachine
from gpuyard.domain import wire
from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.errors import ProviderError, RefusedError
from gpuyard.domain.ids import new_id
from gpuyard.domain.joining import Machine
from gpuyard.providers.conformance import Case, Subject
from gpuyard.providers.instances.renting_instance import Invited
from gpuyard.server.agents_door import AgentsDoor
from gpuyard.server.authority import Authority
from tests.support.conformance import only
from tests.support.fake_cloud import FakeCloudProvider, note_python
from tests.support.ports import free_port

# What may break on a rented machine alone; all that comes from the agent's link is the
# same as on other nodes.
DAILY = {
    "completes",
    "cancel_right_after_submit",
    "cancel_while_running",
    "same_attempt_once",
    "lost_reply",
    "too_much",
    "unknown_id",
    "cost",
    "available_gpus",
    "health",
}


class Caller:
    """A machine at the other end of a link (`providers.callers.Caller`)."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.machine = machine
        self.name = name

    def is_removed(self) -> bool:
        return False


class Instance:
    """The instance as its provider and its listeners see it."""

    epoch = 1
    installation = "lab"
    open_until = 1e12

    def __init__(self, folder: Path) -> None:
        authority = Authority.of(folder / "authority")
        core = SimpleNamespace(clock=lambda: 0.0)
        controller: Any = SimpleNamespace(
            core=core, joined_nodes=self, serve_agent=self.serve_agent
        )
        self.door = AgentsDoor(f"127.0.0.1:{free_port(2)}", authority, controller)
        self.provider: FakeCloudProvider | None = None
        self._orders: dict[str, AttemptOrder] = {}
        # By attempt the node that has joined, and by secret the attempt.
        self._nodes: dict[str, str] = {}
        self._secrets: dict[str, str] = {}
        self._members: dict[str, Any] = {}
        self._started: set[str] = set()

    # --- for the listeners ---

    def node_of(self, key: str) -> Any:
        """By an attempt, or by the fingerprint of a certificate."""
        if key.startswith("attempt_"):
            return self._nodes.get(key, "")
        return self._members.get(key)

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

    async def invite(self, order: AttemptOrder, name: str, for_s: float) -> Invited:
        self._orders[order.attempt_id] = order
        secret = self.door.secret_for(order.attempt_id)
        self._secrets[secret] = order.attempt_id
        url = await self.door.url_for_machines()
        return Invited(url, f"{self.door.fingerprint}.{secret}")

    def owns(self, owner: str) -> bool:
        return owner in self._orders

    def attempt_of(self, reference: str) -> str:
        return ""

    def attempt_on(self, node_id: str) -> str:
        found = (key for key, known in self._nodes.items() if known == node_id)
        return next(found, "")

    def is_wanted(self, attempt_id: str) -> bool:
        return attempt_id in self._orders

    def has_started(self, attempt_id: str) -> bool:
        return attempt_id in self._started

    async def order(self, attempt_id: str) -> AttemptOrder | None:
        return self._orders.get(attempt_id)

    async def place(self, attempt_id: str, node_id: str, gpus: Sequence[str]) -> None:
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
        self._orders.pop(attempt_id, None)


@asynccontextmanager
async def open_subject(folder: Path) -> AsyncIterator[Subject]:
    """A provider, its instance and its cloud, and no machine afterwards."""
    instance = Instance(folder)
    note_python(folder / "cloud")
    settings = {"folder": str(folder / "cloud"), "poll_s": 0.2}
    provider = FakeCloudProvider({**settings, "home": str(folder)})
    provider.attach(instance)
    instance.provider = provider
    sink: Any = None
    await instance.door.open()
    await provider.start(sink)
    try:
        yield Subject(provider, pause_s=0.1)
    finally:
        await provider.close()
        await instance.door.close()
        await asyncio.to_thread(provider.cloud.close_all)


@pytest.mark.parametrize("case", only(DAILY), ids=str)
def test_conformance(case: Case, tmp_path: Path) -> None:
    case.run(lambda: open_subject(tmp_path))


def test_without_a_server_nothing_is_rented(tmp_path: Path) -> None:
    provider = FakeCloudProvider({"folder": str(tmp_path)})
    with pytest.raises(ProviderError, match="by a gpuyard server only"):
        asyncio.run(provider.offers())
    with suppress(ProviderError):
        asyncio.run(provider.close())
