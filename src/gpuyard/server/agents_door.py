"""Where the agents of machines that have joined dial: a listener of its own, at which
only certificates of the instance's authority come in.

At the next port, machines ask to join. Nobody listens there unless an invitation is
open.
"""

import asyncio
import json
import socket
import ssl
from collections import Counter
from contextlib import suppress

import structlog
from pydantic import ValidationError

from gpuyard.config.sockets import keep_alive
from gpuyard.config.throttle import Throttle
from gpuyard.controller.controller import Controller
from gpuyard.domain import wire, wire_frames
from gpuyard.domain.errors import GpuyardError, InvalidInputError
from gpuyard.domain.joining import JoinAnswer, JoinRefusal, JoinRequest, Machine
from gpuyard.server.authority import (
    Authority,
    fingerprint_of,
    fingerprint_of_der,
    pem_of,
)
from gpuyard.server.doorway import Doorway

_ANSWER_S = 20.0
_LOOK_S = 60.0
_LAST_PORT = 65_535
# One for its link, and one for each transfer and each stream to a job.
_MOST_OF_ONE_NODE = 256
# New ones of a node: a busy one fetches for each of its jobs.
_NEW_PER_S = 50.0
_NEW_AT_ONCE = 1000
log = structlog.get_logger(__name__)


class AgentsDoor:
    """The two listeners of a server that leads. `listen`: HOST:PORT. `reached_at`: the
    host by which machines reach it, if that is another one.
    """

    def __init__(
        self,
        listen: str,
        authority: Authority,
        controller: Controller,
        reached_at: str | None = None,
    ) -> None:
        host, _, port = listen.rpartition(":")
        self._host = host.strip("[]")
        self._port = int(port)
        self._reached_at = reached_at
        self.authority = authority
        self._controller = controller
        self._nodes = controller.joined_nodes
        self._agents: Doorway | None = None
        self._joins: Doorway | None = None
        self._of_node: Counter[str] = Counter()
        self._pace = Throttle(_NEW_PER_S, _NEW_AT_ONCE)
        self._join_port = 0
        self._closing: asyncio.Task[None] | None = None
        self._is_open = asyncio.Event()

    async def open(self) -> None:
        """Listen for agents, and for machines if an invitation is open.
        InvalidInputError when the address cannot be used; it may be called again.
        """
        if self._port >= _LAST_PORT:
            raise self._cannot_listen(self._port + 1, "there is no such port")
        if self._agents is None:
            self._listen_for_agents()
        self._is_open.set()
        await self.expect_machines()

    def _listen_for_agents(self) -> None:
        sock = self._bind(self._port)
        self._port = int(sock.getsockname()[1])
        self._agents = Doorway(
            sock,
            self.authority.server_context(for_agents=True),
            self._serve_agent,
            checks_certificates=True,
        )
        log.info("listening for agents", port=self._port)

    def _bind(self, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((self._host, port))
        except OSError as error:
            sock.close()
            why = error.strerror or "it is in use"
            raise self._cannot_listen(port, why) from None
        return sock

    def _cannot_listen(self, port: int, why: str) -> InvalidInputError:
        return InvalidInputError.of(
            "server.agents_listen",
            f"port {port} at {self._host} cannot be used: {why}",
            "name an address of this machine, and a free port like the one after it",
        )

    # --- machines that join ---

    async def expect_machines(self) -> None:
        """Listen for machines that join, for as long as an invitation is open."""
        if self._nodes.open_until <= self._controller.core.clock():
            return
        if self._joins is None:
            self._listen_for_machines()
        if self._closing is None:
            self._closing = asyncio.create_task(
                self._close_in_time(), name="close-door"
            )

    def _listen_for_machines(self) -> None:
        sock = self._bind(self._port + 1)
        self._join_port = int(sock.getsockname()[1])
        self._joins = Doorway(
            sock,
            self.authority.server_context(for_agents=False),
            self._serve_machine,
            checks_certificates=False,
        )

    async def _close_in_time(self) -> None:
        clock = self._controller.core.clock
        left_s = self._nodes.open_until - clock()
        while left_s > 0:
            # Others may be made meanwhile, and the clock may be set.
            await asyncio.sleep(min(left_s, _LOOK_S))
            left_s = self._nodes.open_until - clock()
        if self._joins:
            await self._joins.close(with_connections=False)
            self._joins = None
        self._closing = None

    @property
    def fingerprint(self) -> str:
        """That of the authority."""
        return self.authority.fingerprint

    def secret_for(self, purpose: str) -> str:
        """A secret that is the same for each call, and that nobody else can know."""
        return self.authority.secret_for(purpose)

    async def url_for_machines(self) -> str:
        """Where machines dial that are invited, once somebody listens there."""
        await self._is_open.wait()
        await self.expect_machines()
        return self.url()

    def url(self) -> str:
        """Where a machine that was invited dials."""
        host = self._reached_at or self._host
        if host in ("0.0.0.0", "::"):
            host = _own_address() or socket.gethostname()
        shown = f"[{host}]" if ":" in host else host
        return f"https://{shown}:{self._join_port}"

    async def _serve_machine(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Say who we are, in a line of JSON, and answer the line of the machine."""
        with suppress(OSError, EOFError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_ANSWER_S):
                await _say(writer, json.dumps({"authority": self.authority.pem}))
                said = await reader.readuntil()
            answer = await self._answer(said, _address_of(writer))
            async with asyncio.timeout(_ANSWER_S):
                await _say(writer, answer)

    async def _answer(self, said: bytes, address: str) -> str:
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

    async def _serve_agent(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True)
        node = None
        if certificate:
            node = self._nodes.node_of(fingerprint_of_der(certificate))
        if node is None:
            _refuse(writer, "This certificate is none of this instance.")
            return
        if self._of_node[node.id] >= _MOST_OF_ONE_NODE:
            _refuse(writer, f"{node.title} has too many connections.")
            return
        keep_alive(writer.get_extra_info("socket"))
        server_address = str(writer.get_extra_info("sockname")[0])
        machine = Machine(node.id, _address_of(writer), server_address)
        self._of_node[node.id] += 1
        try:
            await asyncio.sleep(self._pace.wait_s(node.id))
            await self._controller.serve_agent(reader, writer, machine)
        finally:
            self._of_node[node.id] -= 1

    async def close(self) -> None:
        """Let nobody in any more. The links end with their provider."""
        if self._closing:
            self._closing.cancel()
        for doorway in (self._joins, self._agents):
            if doorway:
                await doorway.close(with_connections=False)


async def _say(writer: asyncio.StreamWriter, line: str) -> None:
    writer.write(line.encode() + b"\n")
    await writer.drain()


def _refuse(writer: asyncio.StreamWriter, reason: str) -> None:
    log.warning("an agent is refused", address=_address_of(writer), why=reason)
    writer.write(wire_frames.encode(wire.Refused(reason)))


def _address_of(writer: asyncio.StreamWriter) -> str:
    address = writer.get_extra_info("peername")
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
