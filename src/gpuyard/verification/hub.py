"""Where streaming executors wait for their seed: a server with mutual TLS, and one line to each solver.

A solver's certificate names its check, so it can speak for no other; the first connection of a check is the only one.
On uvloop a connection takes some 40 kB, on asyncio's own loop 300 kB (benchmarks/verification_barrier.py).
"""

import asyncio
import json
import resource
import time
from collections.abc import Iterable, Mapping
from typing import Any, Self

from gpuyard.domain.errors import InvalidInputError
from gpuyard.verification.certificates import Authority
from gpuyard.verification.protocol import LONGEST_LINE, Conversation, Message, ProtocolError, Stage, Task, parse

# For a handshake, or a farewell: S0's streaming timeout with its leeway.
_PATIENCE_S = 35.0
_BACKLOG = 4096
# Each solver is an open file, of which a process may have 1,024 by default.
_FILES = 65_536


class LineLostError(Exception):
    """The solver has left, or its connection broke."""


class Line:
    """The connection of one check's solver. `heard_at` is when its last message came (monotonic seconds);
    `repeats` counts the further connections that came with the same certificate and were refused."""

    def __init__(
        self, check_id: str, conversation: Conversation, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.check_id, self.conversation = check_id, conversation
        self.heard_at = time.monotonic()
        self.repeats = 0
        self._reader, self._writer = reader, writer

    async def receive(self, within_s: float | None = None) -> Message:
        """The next message. Raises `ProtocolError` for one that is wrong or not due, after which nothing else counts;
        `LineLostError`; TimeoutError, after which the line goes on."""
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
            # TimeoutError is one: ours, or the system's, which has given the connection up.
            if within_s is None or not isinstance(error, TimeoutError):
                raise LineLostError(f"the connection of {self.check_id} broke: {error}") from error
            stage = self.conversation.stage
            raise TimeoutError(f"{self.check_id} said nothing for {within_s:g} s at the stage {stage}") from None
        self.heard_at = time.monotonic()
        if not line:
            raise LineLostError(f"{self.check_id} has left at the stage {self.conversation.stage}")
        if not line.endswith(b"\n"):
            raise ProtocolError(f"{self.check_id} has left in the middle of a line")
        return line

    async def send(self, message: Mapping[str, Any]) -> None:
        """Say something. Raises `LineLostError`, TimeoutError where the solver reads nothing."""
        self.write(_encoded(message))
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._writer.drain()
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            raise LineLostError(f"the connection of {self.check_id} broke: {error}") from error

    def write(self, data: bytes) -> None:
        """Hand bytes to the system, or keep them until it takes them."""
        if self._writer.is_closing():
            raise LineLostError(f"{self.check_id} has left")
        self._writer.write(data)

    def close(self) -> None:
        """Tell the solver that this is the end."""
        if not self._writer.is_closing():
            self._writer.write(_encoded({"type": "end"}))
            self._writer.close()

    def abort(self) -> None:
        """Cut it off."""
        self._writer.transport.abort()


class Hub:
    """`async with Hub(…) as hub`: invite checks, expect their solvers, release all at once."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, public_host: str | None = None) -> None:
        """Listens on `host` and `port` (0: any); solvers are told `public_host`, by default the same."""
        self._host, self.port, self.public_host = host, port, public_host or host
        self._authority = Authority.create()
        self._waiting: dict[str, tuple[asyncio.Future[Line], Conversation]] = {}
        self._lines: dict[str, Line] = {}
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        _allow_files()
        try:
            self._server = await asyncio.start_server(
                self._arrived, self._host, self.port, ssl=self._authority.server_context(), limit=LONGEST_LINE,
                backlog=_BACKLOG, ssl_handshake_timeout=_PATIENCE_S, ssl_shutdown_timeout=_PATIENCE_S,
            )  # fmt: skip
        except OSError as error:
            fault = f"nobody can listen at {self._host}:{self.port}: {error.strerror or error}"
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
        self, check_id: str, *, valid_s: float = 3600.0, wait_s: float | None = None, task: Task = Task.SOLVE,
        seeded: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """Let one solver in for `valid_s` seconds; the `stream` of its order.

        `wait_s` is how long it may have to wait for its seed (330 s by default); `seeded` where its order has it.
        """
        if check_id in self._waiting or check_id in self._lines:
            raise ValueError(f"{check_id} is invited already")
        arrival = asyncio.get_running_loop().create_future()
        self._waiting[check_id] = arrival, Conversation(task, seeded=seeded)
        mine = self._authority.for_solver(check_id, valid_s)
        return {
            "host": self.public_host, "port": self.port, "authority": self._authority.pem,
            "certificate": mine.certificate, "key": mine.key, **({} if wait_s is None else {"wait_s": wait_s}),
        }  # fmt: skip

    async def expect(self, check_id: str, within_s: float | None = None) -> Line:
        """The line to an invited solver, once it has connected. Raises TimeoutError, KeyError if it is not invited."""
        if check_id in self._lines:
            return self._lines[check_id]
        arrival, _ = self._waiting[check_id]
        try:
            async with asyncio.timeout(within_s):
                # Another call may wait for the same.
                return await asyncio.shield(arrival)
        except TimeoutError:
            raise TimeoutError(f"{check_id} did not connect within {within_s:g} s") from None

    def dismiss(self, check_id: str) -> None:
        """Let its solver in no more, and end its line."""
        waiting, line = self._waiting.pop(check_id, None), self._lines.pop(check_id, None)
        if waiting is not None:
            waiting[0].cancel()
        if line is not None:
            line.close()

    def _arrived(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        check_id = _name(writer)
        if check_id in self._lines:
            self._lines[check_id].repeats += 1
        if check_id not in self._waiting:
            writer.transport.abort()
            return
        arrival, conversation = self._waiting.pop(check_id)
        self._lines[check_id] = Line(check_id, conversation, reader, writer)
        arrival.set_result(self._lines[check_id])


def release(lines: Iterable[Line], seeds: Mapping[str, int]) -> dict[str, float]:
    """The start barrier: send each solver that is ready its check's seed, in one go; when each was sent, by check id.

    Times are monotonic seconds. Who is not ready, or has left, gets no seed and stands in no result.
    """
    ready = [line for line in lines if line.conversation.stage is Stage.READY]
    # Whatever can be done before is, so that between the first and the last there is nothing but writing.
    prepared = [(line, _encoded({"type": "seed", "seed": seeds[line.check_id]})) for line in ready]
    released: dict[str, float] = {}
    for line, data in prepared:
        try:
            line.write(data)
        except LineLostError:
            continue
        line.conversation.release()
        released[line.check_id] = time.monotonic()
    return released


def _allow_files() -> None:
    """Have this process open as many files as the system lets it, as far as solvers could need them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _encoded(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def _name(writer: asyncio.StreamWriter) -> str:
    """The common name of the certificate at the other end."""
    certificate: dict[str, Any] = writer.get_extra_info("peercert")
    return next(value for part in certificate["subject"] for key, value in part if key == "commonName")
