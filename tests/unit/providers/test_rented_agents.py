"""What the agents of rented machines say when they join."""

import asyncio
from typing import Any

import pytest

from gpuyard.domain import wire
from gpuyard.domain.errors import ProviderError
from gpuyard.providers.instances.agents import RentedAgents

pytestmark = pytest.mark.anyio


class OneStarted:
    """An instance with one attempt, which has started on its machine."""

    epoch = 1

    def attempt_on(self, node_id: str) -> str:
        return "attempt_1"

    def has_started(self, attempt_id: str) -> bool:
        return True

    async def joined(self, *_: Any) -> wire.Welcome:
        return wire.Welcome(1)


class Link:
    """To an agent of now, which `has` the attempt, or not; None: it has just gone."""

    def __init__(self, has: bool | None) -> None:
        self.has = has
        self.was_asked = asyncio.Event()
        self.agents = self
        self.links = {"node_1"}

    async def has_attempt(self, node_id: str, attempt_id: str) -> bool:
        self.was_asked.set()
        if self.has is None:
            self.links.clear()
            raise ProviderError("The node's agent is not connected.")
        return self.has


@pytest.mark.parametrize(
    ("has", "ends"), [(True, []), (None, []), (False, ["attempt_lost"])]
)
async def test_an_attempt_that_a_late_hello_does_not_name_is_lost_only_if_it_is_gone(
    has: bool | None, ends: list[str]
) -> None:
    instance: Any = OneStarted()
    agents = RentedAgents("fake", instance, lambda: None)
    link: Any = Link(has)
    agents.link = link
    hello = wire.Hello("node_1", "node_1", "boot_1", 1, 1.0)
    await agents.node_joined("fake", hello)
    await link.was_asked.wait()
    assert [end.reason for end in agents.ends.values()] == ends
