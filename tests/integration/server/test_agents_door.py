"""The doors for agents and for machines that join, and strangers in front of them."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuyard.client import joining
from gpuyard.config import joined
from gpuyard.config.joined import JoinedServer, Membership, open_agent_streams
from gpuyard.config.paths import Home
from gpuyard.config.throttle import Throttle
from gpuyard.controller.joined_nodes import JoinedMachine
from gpuyard.domain.errors import InvalidInputError, UnreachableError
from gpuyard.domain.joining import SERVER_NAME
from gpuyard.server import agents_door, doorway
from gpuyard.server.agents_door import AgentsDoor
from gpuyard.server.authority import Authority
from tests.support.ports import free_port
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio
HOST = "127.0.0.1"


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


class Nodes:
    """Lets in whoever asks, as `lab2` (`controller.joined_nodes.JoinedNodes`)."""

    open_until = 1e12

    def __init__(self) -> None:
        self.fingerprints: set[str] = set()

    def node_of(self, fingerprint: str) -> Any:
        if fingerprint in self.fingerprints:
            return SimpleNamespace(id="node_2", title="lab2")
        return None

    async def join(self, *words: Any) -> JoinedMachine:
        certificate, fingerprint = words[-1]("node_2")
        self.fingerprints.add(fingerprint)
        return JoinedMachine("node_2", "lab2", certificate)


class Lab:
    """A door, and the agents that it has let in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port(2)
        self.inside = 0
        self._over = asyncio.Event()
        self.controller: Any = SimpleNamespace(
            joined_nodes=Nodes(),
            core=SimpleNamespace(clock=lambda: 0.0),
            serve_agent=self._serve,
        )
        self.authority = Authority.of(folder / "authority")
        listen = f"{HOST}:{self.port}"
        self.door = AgentsDoor(listen, self.authority, self.controller)

    async def _serve(self, reader: Any, writer: Any, machine: Any) -> None:
        self.inside += 1
        await reader.read()
        self.inside -= 1

    def join(self) -> Membership:
        """Let a machine join, as the command does."""
        code = f"{self.authority.fingerprint}.{'a' * 32}"
        home = Home(self.folder / "home")
        return joining.join(home, f"https://{HOST}:{self.port + 1}", code)

    def server(self, membership: Membership) -> JoinedServer:
        folder = Home(self.folder / "home").membership
        return JoinedServer(membership, folder, SERVER_NAME)


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    made = Lab(tmp_path)
    await made.door.open()
    yield made
    await made.door.close()


def held(
    port: int, count: int, stack: ExitStack, address: str = HOST
) -> list[socket.socket]:
    """Connections of somebody at this address who says nothing."""
    source = (address, 0)
    made = [
        stack.enter_context(socket.create_connection((HOST, port), 60, source))
        for _ in range(count)
    ]
    for one in made:
        one.setblocking(False)
    return made


def is_open(one: socket.socket) -> bool:
    try:
        return one.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


async def test_many_who_come_at_once_are_all_let_in(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the machine is.
    for module, limit in (
        (joined, "_OPEN_S"),
        (doorway, "_HANDSHAKE_S"),
        (doorway, "_GRACE_S"),
    ):
        monkeypatch.setattr(module, limit, 300.0)
    server = lab.server(await asyncio.to_thread(lab.join))
    count = 2 * doorway._MOST_NEW_OF_ONE
    opened = await asyncio.gather(*[open_agent_streams(server) for _ in range(count)])
    await eventually(lambda: lab.inside == count, "all to be in")
    for _, one in opened:
        one.close()


async def test_a_node_that_connects_again_and_again_waits_for_its_turn(
    lab: Lab,
) -> None:
    lab.door._pace = Throttle(per_s=0.001, burst=2)
    server = lab.server(await asyncio.to_thread(lab.join))
    opened = [await open_agent_streams(server) for _ in range(4)]
    await eventually(lambda: lab.door._of_node["node_2"] == 4, "all to have come")
    await eventually(lambda: lab.inside == 2, "two to be in")
    for _, one in opened:
        one.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers may take their time, and each loopback address is one of its own."""
    monkeypatch.setattr(doorway, "_HANDSHAKE_S", 300.0)
    monkeypatch.setattr(doorway, "network_of", lambda address: address)


def strangers(lab: Lab) -> int:
    assert lab.door._agents
    return len(lab.door._agents._strangers)


@pytest.mark.usefixtures("patient")
async def test_beyond_64_strangers_of_one_network_its_oldest_goes(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorway, "_GRACE_S", 0.0)
    with ExitStack() as stack:
        (other,) = held(lab.port, 1, stack, "127.0.0.2")
        await eventually(lambda: strangers(lab) == 1, "another one to be there")
        first, *rest = held(lab.port, 64, stack)
        await eventually(lambda: strangers(lab) == 65, "all to be there")
        assert all(map(is_open, (other, first, *rest)))
        (one_more,) = held(lab.port, 1, stack)
        await eventually(lambda: not is_open(first), "the oldest to go")
        assert all(map(is_open, (other, *rest, one_more)))
        assert strangers(lab) == 65


@pytest.mark.usefixtures("patient")
async def test_beyond_1024_strangers_the_oldest_goes_and_an_agent_stays(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorway, "_GRACE_S", 300.0)
    server = lab.server(await asyncio.to_thread(lab.join))
    _, agent = await open_agent_streams(server)
    await eventually(lambda: lab.inside == 1, "the agent to be in")
    with ExitStack() as stack:
        made: list[socket.socket] = []
        for number in range(16):
            made += held(lab.port, 64, stack, f"127.0.1.{number + 1}")
            so_many = len(made)
            await eventually(lambda n=so_many: strangers(lab) == n, "all to be there")
        (one_more,) = held(lab.port, 1, stack, "127.0.2.1")
        await eventually(lambda: not is_open(made[0]), "the oldest to go")
        assert all(map(is_open, (*made[1:], one_more)))
        assert (strangers(lab), lab.inside) == (1024, 1)
    agent.close()


async def test_machines_are_told_the_host_by_which_they_reach_it(lab: Lab) -> None:
    for host, shown in (("gpuyard.lan", "gpuyard.lan"), ("fd00::5", "[fd00::5]")):
        door = AgentsDoor("0.0.0.0:7433", lab.authority, lab.controller, host)
        assert door.url().startswith(f"https://{shown}:")


async def test_there_is_no_port_after_the_last_one(lab: Lab) -> None:
    door = AgentsDoor(f"{HOST}:65535", lab.authority, lab.controller)
    with pytest.raises(InvalidInputError, match="port like the one after it"):
        await door.open()


async def test_who_does_not_shake_hands_is_sent_away(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorway, "_HANDSHAKE_S", 0.1)
    with ExitStack() as stack:
        (silent, garbage) = held(lab.port, 2, stack)
        garbage.send(b"GET / HTTP/1.1\r\n\r\n" * 100)
        for one in (silent, garbage):
            await eventually(lambda one=one: not is_open(one), "it to be sent away")
    assert lab.door._agents
    tasks = lab.door._agents._tasks
    await eventually(lambda: not tasks, "nothing to be left of them")


async def test_one_machine_has_so_many_connections_and_no_more(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents_door, "_MOST_OF_ONE_NODE", 3)
    server = lab.server(await asyncio.to_thread(lab.join))
    opened = [await open_agent_streams(server) for _ in range(3)]
    await eventually(lambda: lab.inside == 3, "three to be in")
    reader, writer = await open_agent_streams(server)
    async with asyncio.timeout(60):
        assert b"too many connections" in await reader.read()
    writer.close()
    opened[0][1].close()
    await eventually(lambda: lab.inside == 2, "one to leave")
    opened.append(await open_agent_streams(server))
    await eventually(lambda: lab.inside == 3, "the next one to be in")
    for _, one in opened:
        one.close()


@pytest.mark.parametrize(
    "said", [b"", b"{}\n", b"[1]\n", b"\xff\n", b"HTTP/1.1 400 Bad\r\n", b"x" * 200_000]
)
async def test_what_is_no_instance_is_called_so(tmp_path: Path, said: bytes) -> None:
    authority = Authority.of(tmp_path / "authority")

    async def serve(reader: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()

    context: ssl.SSLContext = authority.server_context(for_agents=False)
    server = await asyncio.start_server(serve, HOST, 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    home = Home(tmp_path / "home")
    code = f"{'0' * 64}.{'a' * 32}"
    with pytest.raises(Exception, match=r"no gpuyard|another fingerprint|not answer"):
        await asyncio.to_thread(joining.join, home, f"https://{HOST}:{port}", code)
    server.close()


async def test_what_speaks_no_tls_is_called_so(tmp_path: Path) -> None:
    async def serve(reader: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example\r\n")
        writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    code = f"{'0' * 64}.{'a' * 32}"
    home = Home(tmp_path / "home")
    with pytest.raises(UnreachableError, match="does not answer"):
        await asyncio.to_thread(joining.join, home, f"https://{HOST}:{port}", code)
    server.close()
