"""Invitations: made, used, listed and revoked."""

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from gpuyard.controller.joined_nodes import JoinedNodes
from gpuyard.domain.errors import InvalidInputError, NotFoundError, RefusedError
from gpuyard.domain.joining import NewInvitation
from gpuyard.server.routers.nodes import invite_node
from tests.support.controlled import Controlled

pytestmark = pytest.mark.anyio


@dataclass
class Door:
    """Where machines ask to join."""

    nodes: JoinedNodes

    async def invite(self, name: str) -> tuple[str, str]:
        made, secret = await self.nodes.invite(NewInvitation(name=name))
        return made.id, secret

    async def join(self, secret: str) -> str:
        joined = await self.nodes.join(
            secret, "host", "", "192.0.2.1", lambda node: ("PEM", f"print-{node}")
        )
        return joined.name

    def states(self) -> list[str]:
        return [one.state for one in self.nodes.invitations()]


@pytest.fixture
def door(instance: Controlled) -> Door:
    return Door(instance.controller.joined_nodes)


async def test_they_are_listed_with_what_became_of_them(
    instance: Controlled, door: Door
):
    _, secret = await door.invite("a")
    await door.invite("b")
    revoked, _ = await door.invite("c")
    await door.join(secret)
    await door.nodes.revoke(revoked)
    await instance.restart()
    nodes = instance.controller.joined_nodes
    assert [one.state for one in nodes.invitations()] == ["used", "open", "over"]
    assert nodes.invitations()[0].used_from == "192.0.2.1"


async def test_nobody_joins_with_one_that_was_revoked(door: Door):
    invitation, secret = await door.invite("a")
    for reference in (invitation, invitation[-8:], "a"):
        await door.nodes.revoke(reference)
    with pytest.raises(RefusedError, match="was revoked"):
        await door.join(secret)
    assert door.nodes.open_until <= door.nodes._core.clock()


async def test_one_that_was_used_is_not_revoked_and_its_machine_is_named(door: Door):
    _, secret = await door.invite("a")
    await door.join(secret)
    with pytest.raises(RefusedError, match="gpuyard nodes remove a"):
        await door.nodes.revoke("a")


async def test_of_several_with_a_name_the_open_one_is_meant(door: Door):
    await door.invite("a")
    await door.nodes.revoke("a")
    _, secret = await door.invite("a")
    await door.nodes.revoke("a")
    with pytest.raises(RefusedError, match="was revoked"):
        await door.join(secret)
    await door.invite("b")
    await door.invite("b")
    with pytest.raises(NotFoundError, match="could be"):
        await door.nodes.revoke("b")
    with pytest.raises(NotFoundError, match="no invitation 'c'"):
        await door.nodes.revoke("c")


async def test_two_at_once_with_one_invitation_are_one(door: Door):
    _, secret = await door.invite("a")
    answers = await asyncio.gather(
        *[door.join(secret) for _ in range(5)], return_exceptions=True
    )
    assert [each for each in answers if each == "a"] == ["a"]
    assert sum(isinstance(each, RefusedError) for each in answers) == 4


async def test_one_whose_port_cannot_be_opened_does_not_stay_open(
    instance: Controlled, door: Door
):
    async def expect_machines() -> None:
        raise InvalidInputError.of("server.agents_listen", "is in use", "take another")

    app_state: Any = SimpleNamespace(
        agents_door=SimpleNamespace(expect_machines=expect_machines),
        controller=instance.controller,
    )
    with pytest.raises(InvalidInputError, match="is in use"):
        await invite_node(app_state, NewInvitation(name="a"))
    assert door.states() == ["over"]
    assert door.nodes.open_until <= instance.controller.core.clock()
