"""A provider's machines for pools, in memory: they outlive the server, and join when a
test lets them boot.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from gpuyard.config.pools import PoolSettings
from gpuyard.controller.controller import Controller
from gpuyard.controller.joining_door import JoiningDoor
from gpuyard.domain.errors import ProviderError
from gpuyard.ledger.ledger import Ledger
from gpuyard.providers.pool_hands import NodeSize, PoolMachine, PoolOrder, PoolOwner
from tests.support.controlled import Controlled
from tests.support.fake_provider import FakeHost
from tests.support.wait import eventually

PRICE = Decimal("1.50")


class FakePoolHands:
    """All machines that were ever started, by their owner.

    `owner` is the instance, as its newest server says. `refusal`: what a launch is refused with, `no_size` how the question for the size
    fails, and `no_answer` that for the machines. `lose_replies`: a launch is carried out,
    and its reply is lost. `hold`: launches and ends wait for it before they are carried
    out.
    """

    poll_s = 0.02

    def __init__(self) -> None:
        self.owner: PoolOwner | None = None
        self.orders: dict[str, PoolOrder] = {}
        self.known: dict[str, PoolMachine] = {}
        self.refusal: ProviderError | None = None
        self.no_size: ProviderError | None = None
        self.no_answer: ProviderError | None = None
        self.lose_replies = False
        self.hold: asyncio.Event | None = None
        self.launches = 0

    @property
    def live(self) -> list[PoolMachine]:
        return [machine for machine in self.known.values() if machine.live]

    def put(self, owner: str, **fields: Any) -> None:
        """Something befalls a machine."""
        self.known[owner] = replace(self.known[owner], **fields)

    async def size(self) -> NodeSize:
        if self.no_size:
            raise self.no_size
        return NodeSize("g1", 4.0, 16.0, 1, "Tesla T4", 15.0, "7.5")

    async def launch(self, order: PoolOrder) -> PoolMachine:
        self.launches += 1
        if self.hold:
            await self.hold.wait()
        if self.refusal:
            raise self.refusal
        before = self.orders.setdefault(order.owner, order)
        assert before == order, "an order that is repeated has other words"
        machine = PoolMachine(
            order.owner,
            f"i-{len(self.known)}",
            live=True,
            began_at=time.time(),
            price_per_hour=PRICE,
            currency="USD",
        )
        self.known.setdefault(order.owner, machine)
        if self.lose_replies:
            raise ProviderError("the connection was cut", "fake", "TIMEOUT")
        return self.known[order.owner]

    async def find(self, owner: str) -> PoolMachine | None:
        return self.known.get(owner)

    async def machines(self) -> Sequence[PoolMachine]:
        if self.no_answer:
            raise self.no_answer
        assert self.owner and self.owner.installation
        return list(self.known.values())

    async def end(self, reference: str) -> None:
        if self.hold:
            await self.hold.wait()
        for owner, machine in self.known.items():
            if machine.reference == reference:
                self.put(owner, live=False)


class FakeDoor(JoiningDoor):
    """Where its machines would dial."""

    @property
    def fingerprint(self) -> str:
        return "authority"

    def secret_for(self, purpose: str) -> str:
        return f"secret-of-{purpose}"

    async def url_for_machines(self) -> str:
        return "https://192.0.2.9:7434"


class Pooled(Controlled):
    """A controller with a pool `warm` of these settings."""

    def __init__(self, folder: Any, pool: dict[str, Any], **settings: Any) -> None:
        self.cloud = FakePoolHands()
        self.booted: set[str] = set()
        section = PoolSettings(**{"provider": "fake", **pool})
        needed = {
            "pools": {"warm": section},
            "providers": {"fake": {}},
            "server": {"agents_listen": "192.0.2.9:7433"},
        }
        super().__init__(folder, **{**needed, **settings})

    def extend(self, controller: Controller) -> None:
        self.provider.hands = self.cloud
        self.cloud.owner = controller.pools
        if self.settings.server.agents_listen:
            controller.door.open(FakeDoor())
        else:
            controller.door.identify(FakeDoor())

    def let_idle_go(self) -> None:
        """From now on, a node that is idle goes at once."""
        pool = self.controller.pools.by_name["warm"]
        pool.settings = pool.settings.model_copy(update={"idle": 0.01})

    def rows(self) -> list[dict[str, Any]]:
        """The nodes of the pool in the ledger, the oldest first."""
        return [dict(row) for row in self.ledger.queries.pool_nodes("warm", 100)][::-1]

    def rows_after_the_end(self) -> list[dict[str, Any]]:
        """The nodes that have not gone, read by nobody who runs."""
        ledger = Ledger.open(self.folder / "ledger.db")
        found = [dict(row) for row in ledger.queries.live_pool_nodes()]
        ledger.close()
        return found

    def states(self) -> list[str]:
        return [row["state"] for row in self.rows()]

    async def until_states(self, *states: str) -> None:
        """Wait until the nodes of the pool that have not gone are in these states."""

        def are() -> bool:
            live = [state for state in self.states() if state != "gone"]
            return sorted(live) == sorted(states)

        await eventually(are, f"the nodes to be {states or 'gone'}; {self.rows()}")

    async def boot(self, count: int = 1) -> list[FakeHost]:
        """Let so many machines boot and join, which have not yet."""

        def new() -> list[PoolOrder]:
            return [
                self.cloud.orders[machine.owner]
                for machine in self.cloud.live
                if machine.owner not in self.booted
            ]

        await eventually(lambda: len(new()) >= count, f"{count} machines")
        return [await self._join(order) for order in new()[:count]]

    async def _join(self, order: PoolOrder) -> FakeHost:
        self.booted.add(order.owner)
        joined = await self.controller.joined_nodes.join(
            order.join_code.removeprefix("authority."),
            order.name,
            "",
            "192.0.2.1",
            lambda node_id: ("PEM", f"of-{node_id}"),
        )
        host = FakeHost(joined.node_id, gpu_count=1)
        self.hosts[joined.node_id] = host
        await self.provider.join(joined.node_id)
        return host


class FakeOwner(PoolOwner):
    """An instance that has these rows."""

    def __init__(self, *rows: str, installation: str = "f" * 32) -> None:
        self.rows = set(rows)
        self.known_as = installation

    @property
    def installation(self) -> str:
        return self.known_as

    def owns(self, owner: str) -> bool:
        return owner in self.rows
