"""Only a program of an attempt gets what is sent to its port."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from gpuyard.node import port_stream
from gpuyard.node.port_owner import ForeignPortError


@pytest.fixture(params=["127.0.0.1", "0.0.0.0", "::", "::ffff:0.0.0.0"])
def served(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """A socket of this process that listens where the loopback reaches it."""
    host: str = request.param
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    dual = family is socket.AF_INET6
    with socket.create_server((host, 0), family=family, dualstack_ipv6=dual) as made:
        yield made


def connect(port: int, *pids: int) -> None:
    """Connect to a port that must be of these processes."""

    async def work() -> None:
        _, writer = await port_stream.connect_to_own(port, lambda: pids)
        writer.close()

    asyncio.run(work())


def test_a_program_of_the_attempt_is_reached(served: socket.socket) -> None:
    connect(served.getsockname()[1], os.getpid())
    with closing(served.accept()[0]) as connection:
        assert connection.recv(1) == b""


def test_another_program_is_not_even_connected_to(served: socket.socket) -> None:
    port = served.getsockname()[1]
    with pytest.raises(ForeignPortError, match="another program listens"):
        connect(port, os.getppid())
    served.setblocking(False)
    with pytest.raises(BlockingIOError):
        served.accept()


def test_where_nobody_listens_the_port_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        connect(port, os.getpid())


def test_who_takes_the_port_between_the_look_and_the_connection_gets_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = socket.create_server(("127.0.0.1", 0))
    port = first.getsockname()[1]
    others: list[socket.socket] = []
    real = port_stream.connect

    async def connect_late(port: int) -> port_stream.Connection:
        first.close()
        others.append(socket.create_server(("127.0.0.1", port)))
        return await real(port)

    monkeypatch.setattr(port_stream, "connect", connect_late)
    with pytest.raises(ForeignPortError, match="has just changed"):
        connect(port, os.getpid())
    (other,) = others
    with closing(other), closing(other.accept()[0]) as connection:
        assert connection.recv(1) == b""
