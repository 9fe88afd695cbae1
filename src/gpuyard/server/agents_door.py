"""Where the agents of machines that have joined dial: a listener of its own, at which
only certificates of the instance's authority come in.

At the next port, machines ask to join. Nobody listens there unless an invitation is
open.
"""

import asyncio
import json
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog
from pydantic import ValidationError

from gpuyard.config.sockets import keep_alive
from gpuyard.controller.controller import Controller
from gpuyard.domain.errors import GpuyardError, InvalidInputError
from gpuyard.domain.joining import JoinAnswer, JoinRefusal, JoinRequest, Machine
from gpuyard.server.authority import (
    Authority,
    fingerprint_of,
    fingerprint_of_der,
    pem_of,
)

if TYPE_CHECKING:
    from websockets.asyncio.server import Server, ServerConnection

_HANDSHAKE_S = 10.0
_ANSWER_S = 20.0
_LOOK_S = 60.0
_PART = 1 << 16
# Agents send parts of 64 KB.
_LARGEST = 1 << 20
_LARGEST_REQUEST = 1 << 15
log = structlog.get_logger(__name__)


class AgentsDoor:
    """The two listeners of a server that leads. `listen`: HOST:PORT."""

    def __init__(
        self, listen: str, authority: Authority, controller: Controller
    ) -> None:
        host, _, port = listen.rpartition(":")
        self._host = host.strip("[]")
        self._port = int(port)
        self.authority = authority
        self._controller = controller
        self._nodes = controller.joined_nodes
        self._agents: Server | None = None
        self._joins: Server | None = None
        self._join_port = 0
        self._closing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Listen for agents, and for machines if an invitation is open.
        InvalidInputError when the address cannot be used.
        """
        from websockets.asyncio.server import serve

        sock = self._bind(self._port)
        self._port = int(sock.getsockname()[1])
        self._agents = await serve(
            self._serve_agent,
            sock=sock,
            ssl=self.authority.server_context(for_agents=True),
            ssl_handshake_timeout=_HANDSHAKE_S,
            open_timeout=_HANDSHAKE_S,
            max_size=_LARGEST,
            compression=None,
            ping_interval=None,
            close_timeout=1.0,
        )
        log.info("listening for agents", port=self._port)
        await self.expect_machines()

    def _bind(self, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((self._host, port))
        except OSError as error:
            sock.close()
            raise InvalidInputError.of(
                "server.agents_listen",
                f"port {port} at {self._host} cannot be used: {error.strerror}",
                "name an address of this machine, and a port that is free like the one"
                " after it",
            ) from None
        return sock

    # --- machines that join ---

    async def expect_machines(self) -> None:
        """Listen for machines that join, for as long as an invitation is open."""
        if self._nodes.open_until <= self._controller.core.clock():
            return
        if self._joins is None:
            await self._listen_for_machines()
        if self._closing is None:
            self._closing = asyncio.create_task(
                self._close_in_time(), name="close-door"
            )

    async def _listen_for_machines(self) -> None:
        from websockets.asyncio.server import serve

        sock = self._bind(self._port + 1)
        self._join_port = int(sock.getsockname()[1])
        self._joins = await serve(
            self._serve_machine,
            sock=sock,
            ssl=self.authority.server_context(for_agents=False),
            ssl_handshake_timeout=_HANDSHAKE_S,
            open_timeout=_HANDSHAKE_S,
            max_size=_LARGEST_REQUEST,
            compression=None,
            ping_interval=None,
            close_timeout=1.0,
        )

    async def _close_in_time(self) -> None:
        clock = self._controller.core.clock
        left_s = self._nodes.open_until - clock()
        while left_s > 0:
            # Others may be made meanwhile, and the clock may be set.
            await asyncio.sleep(min(left_s, _LOOK_S))
            left_s = self._nodes.open_until - clock()
        if self._joins:
            self._joins.close(close_connections=False)
            self._joins = None
        self._closing = None

    def url(self) -> str:
        """Where a machine that was invited dials."""
        host = self._host
        if host in ("0.0.0.0", "::"):
            host = _own_address() or socket.gethostname()
        shown = f"[{host}]" if ":" in host else host
        return f"https://{shown}:{self._join_port}"

    async def _serve_machine(self, connection: "ServerConnection") -> None:
        from websockets.exceptions import ConnectionClosed

        with suppress(ConnectionClosed, TimeoutError, OSError):
            await connection.send(json.dumps({"authority": self.authority.pem}))
            async with asyncio.timeout(_ANSWER_S):
                said = await connection.recv()
            await connection.send(await self._answer(said, _address_of(connection)))

    async def _answer(self, said: str | bytes, address: str) -> str:
        try:
            request = JoinRequest.model_validate_json(said)
        except ValidationError:
            return JoinRefusal(refused="That is no request to join.").model_dump_json()

        def sign(node_id: str) -> tuple[str, str]:
            certificate = self.authority.sign_for_node(request.csr, node_id)
            return pem_of(certificate), fingerprint_of(certificate)

        try:
            joined = await self._nodes.join(
                request.secret, request.host, request.version, address, sign
            )
        except GpuyardError as error:
            log.warning("a machine may not join", address=address, why=str(error))
            return JoinRefusal(refused=str(error)).model_dump_json()
        log.info("a machine has joined", name=joined.name, address=address)
        answer = JoinAnswer(
            node_id=joined.node_id,
            name=joined.name,
            certificate=joined.certificate,
            port=self._port,
        )
        return answer.model_dump_json()

    # --- agents ---

    async def _serve_agent(self, connection: "ServerConnection") -> None:
        tls: ssl.SSLObject = connection.transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True)
        node = None
        if certificate:
            node = self._nodes.node_of(fingerprint_of_der(certificate))
        if node is None:
            log.warning("an unknown certificate", address=_address_of(connection))
            await connection.close(1008, "this certificate is none of this instance")
            return
        keep_alive(connection.transport.get_extra_info("socket"))
        machine = Machine(
            node.id, _address_of(connection), str(connection.local_address[0])
        )
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=theirs)
        serving = asyncio.create_task(
            self._controller.serve_agent(
                *await asyncio.open_unix_connection(sock=ours), machine
            )
        )
        try:
            await _carry(connection, reader, writer)
        finally:
            writer.close()
            await serving

    async def close(self) -> None:
        """Let nobody in any more. The links end with their provider."""
        if self._closing:
            self._closing.cancel()
        for server in (self._joins, self._agents):
            if server:
                server.close()


async def _carry(
    connection: "ServerConnection",
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Carry bytes both ways until one of them ends."""
    from websockets.exceptions import ConnectionClosed

    async def down() -> None:
        while part := await reader.read(_PART):
            await connection.send(part)

    async def up() -> None:
        async for part in connection:
            writer.write(part if isinstance(part, bytes) else part.encode())
            await writer.drain()

    ways = [asyncio.create_task(down()), asyncio.create_task(up())]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
    with suppress(ConnectionClosed, OSError):
        await connection.close()


def _address_of(connection: "ServerConnection") -> str:
    address = connection.remote_address
    return str(address[0]) if address else "an unknown address"


def _own_address() -> str:
    """The address of this machine from which it would send to others; empty if there
    is none. Nothing is sent.
    """
    with (
        suppress(OSError),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe,
    ):
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])
    return ""
