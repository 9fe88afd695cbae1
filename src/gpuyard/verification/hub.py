"""The hub: a server with mutual TLS where streaming solvers wait for their seed.

The name in a solver's certificate is its check, so it cannot pose as another one, and
only the first connection of a check is accepted. On uvloop a connection takes about 40
kB, on asyncio's own loop 300 kB (benchmarks/verification_barrier.py).
"""

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any, Self

from gpuyard.config.open_files import allow_many_files
from gpuyard.domain.errors import InvalidInputError
from gpuyard.verification.certificates import HubAuthority
from gpuyard.verification.protocol import (
    LONGEST_LINE,
    Conversation,
    Message,
    ProtocolError,
    SolverStage,
    SolverTask,
    parse,
)
from gpuyard.verification.timed_reader import TimedReader

# For a TLS handshake or shutdown: S0's streaming timeout with its leeway.
_PATIENCE_S = 35.0
_BACKLOG = 4096


class ConnectionLostError(Exception):
    """The solver disconnected, or its connection broke."""


class SolverConnection:
    """The connection to the solver of one check.

    `heard_at`: when its last message arrived (monotonic seconds). `repeats`: how many
    further connections with the same certificate were refused.
    """

    def __init__(
        self,
        check_id: str,
        conversation: Conversation,
        reader: TimedReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.check_id = check_id
        self.conversation = conversation
        self.heard_at = time.monotonic()
        self.repeats = 0
        self._reader = reader
        self._writer = writer

    @property
    def unread(self) -> int:
        """How many bytes of the solver have arrived and were not read."""
        return self._reader.unread

    async def receive(self, within_s: float | None = None) -> Message:
        """Return the next message.

        Raises ProtocolError for one that is invalid or not due, after which no other is
        accepted; ConnectionLostError; and TimeoutError, after which you can go on.
        """
        try:
            return self.conversation.take(parse(await self._line(within_s)))
        except ProtocolError:
            self.conversation.end()
            raise

    async def _line(self, within_s: float | None) -> bytes:
        try:
            async with asyncio.timeout(within_s):
                line = await self._reader.readline()
        except ValueError:
            raise ProtocolError(f"a line has more than {LONGEST_LINE} bytes") from None
        except OSError as error:
            # TimeoutError is an OSError: it is ours, or the system's own for a dead
            # connection.
            if within_s is None or not isinstance(error, TimeoutError):
                raise ConnectionLostError(
                    f"the connection of {self.check_id} broke: {error}"
                ) from error
            stage = self.conversation.stage
            raise TimeoutError(
                f"{self.check_id} said nothing for {within_s:g} s at the stage {stage}"
            ) from None
        self.heard_at = self._reader.took(len(line))
        if not line:
            raise ConnectionLostError(
                f"{self.check_id} has left at the stage {self.conversation.stage}"
            )
        if not line.endswith(b"\n"):
            raise ProtocolError(f"{self.check_id} has left in the middle of a line")
        return line

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send a message.

        Raises ConnectionLostError, and TimeoutError when the solver does not read.
        """
        self.write(_encoded(message))
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._writer.drain()
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            raise ConnectionLostError(
                f"the connection of {self.check_id} broke: {error}"
            ) from error

    def write(self, data: bytes) -> None:
        """Write bytes without waiting; the rest is buffered."""
        if self._writer.is_closing():
            raise ConnectionLostError(f"{self.check_id} has left")
        self._writer.write(data)

    def close(self) -> None:
        """Tell the solver that the check has ended, and disconnect."""
        if not self._writer.is_closing():
            self._writer.write(_encoded({"type": "end"}))
            self._writer.close()

    def abort(self) -> None:
        """Disconnect at once."""
        self._writer.transport.abort()


class Hub:
    """Invite checks, wait for their solvers, and release all of them at once."""

    def __init__(
        self, host: str = "127.0.0.1", port: int = 0, *, public_host: str | None = None
    ) -> None:
        """Listen at `host` and `port` (0: any free one).

        Solvers connect to `public_host`, by default the same host.
        """
        self._host = host
        self.port = port
        self.public_host = public_host or host
        self._authority = HubAuthority.create()
        self._waiting: dict[
            str, tuple[asyncio.Future[SolverConnection], Conversation]
        ] = {}
        self._lines: dict[str, SolverConnection] = {}
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        allow_many_files()
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._protocol,
                self._host,
                self.port,
                ssl=self._authority.server_context(),
                backlog=_BACKLOG,
                ssl_handshake_timeout=_PATIENCE_S,
                ssl_shutdown_timeout=_PATIENCE_S,
            )
        except OSError as error:
            fault = (
                f"cannot listen at {self._host}:{self.port}: {error.strerror or error}"
            )
            remedy = "give an address of this machine, and a port that is free (0: any)"
            raise InvalidInputError.of("verification.host", fault, remedy) from error
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for line in self._lines.values():
            line.abort()
        for arrival, _conversation in self._waiting.values():
            arrival.cancel()

    def invite(
        self,
        check_id: str,
        *,
        valid_s: float = 3600.0,
        wait_s: float | None = None,
        task: SolverTask = SolverTask.SOLVE,
        seeded: bool = False,
    ) -> dict[str, Any]:
        """Accept the solver of a check for `valid_s` seconds; returns its `stream`.

        That is the part of its order that says where and how to connect. `wait_s`: how
        long it may have to wait for the seed (330 s by default). `seeded`: the order
        has the seed.
        """
        if check_id in self._waiting or check_id in self._lines:
            raise ValueError(f"{check_id} is invited already")
        arrival = asyncio.get_running_loop().create_future()
        self._waiting[check_id] = arrival, Conversation(task, seeded=seeded)
        mine = self._authority.for_solver(check_id, valid_s)
        return {
            "host": self.public_host,
            "port": self.port,
            "authority": self._authority.pem,
            "certificate": mine.certificate,
            "key": mine.key,
            **({} if wait_s is None else {"wait_s": wait_s}),
        }

    async def expect(
        self, check_id: str, within_s: float | None = None
    ) -> SolverConnection:
        """Wait for the connection of an invited solver.

        Raises TimeoutError, and KeyError when it was not invited.
        """
        if check_id in self._lines:
            return self._lines[check_id]
        arrival, _ = self._waiting[check_id]
        try:
            async with asyncio.timeout(within_s):
                # Another call may wait for the same connection.
                return await asyncio.shield(arrival)
        except TimeoutError:
            raise TimeoutError(
                f"{check_id} did not connect within {within_s:g} s"
            ) from None

    def dismiss(self, check_id: str) -> None:
        """Close the solver's connection and refuse any other."""
        waiting = self._waiting.pop(check_id, None)
        line = self._lines.pop(check_id, None)
        if waiting is not None:
            waiting[0].cancel()
        if line is not None:
            line.close()

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        """What reads and writes a new connection."""
        return asyncio.StreamReaderProtocol(TimedReader(LONGEST_LINE), self._arrived)

    def _arrived(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        assert isinstance(reader, TimedReader)
        check_id = _name(writer)
        if check_id in self._lines:
            self._lines[check_id].repeats += 1
        if check_id not in self._waiting:
            writer.transport.abort()
            return
        arrival, conversation = self._waiting.pop(check_id)
        self._lines[check_id] = SolverConnection(check_id, conversation, reader, writer)
        arrival.set_result(self._lines[check_id])


def release(
    lines: Iterable[SolverConnection], seeds: Mapping[str, int]
) -> dict[str, float]:
    """The start barrier: send all ready solvers their seeds at once.

    Returns when each was sent (monotonic seconds), by check. Solvers that are not
    ready, have disconnected or have said more get no seed and are left out.
    """
    ready = [
        line
        for line in lines
        if line.conversation.stage is SolverStage.READY and not line.unread
    ]
    # Everything is prepared before, so that only writing takes time between the first
    # and the last.
    prepared = [
        (line, _encoded({"type": "seed", "seed": seeds[line.check_id]}))
        for line in ready
    ]
    released: dict[str, float] = {}
    for line, data in prepared:
        try:
            line.write(data)
        except ConnectionLostError:
            continue
        line.conversation.release()
        released[line.check_id] = time.monotonic()
    return released


def _encoded(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def _name(writer: asyncio.StreamWriter) -> str:
    """The common name in the client's certificate."""
    certificate: dict[str, Any] = writer.get_extra_info("peercert")
    return next(
        value
        for part in certificate["subject"]
        for key, value in part
        if key == "commonName"
    )
