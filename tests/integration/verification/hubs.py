"""Hubs with solvers: real ones as processes, and connections that do what no solver
should.
"""

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gpuyard.verification.certificates import HUB
from tests.integration.verification.solvers import SOLVER


@asynccontextmanager
async def solving(
    order: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A solver with its order; killed if it still runs."""
    solver = await asyncio.create_subprocess_exec(
        sys.executable,
        "solve.py",
        cwd=SOLVER,
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert solver.stdin
    solver.stdin.write(json.dumps(order).encode())
    solver.stdin.close()
    try:
        yield solver
    finally:
        if solver.returncode is None:
            solver.kill()
        await solver.communicate()


class Caller:
    """A connection with a check's certificate that says whatever a test wants."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(
        cls, stream: Mapping[str, Any], folder: Path, *, named: bool = True
    ) -> "Caller":
        """With the certificate of an order's stream; not `named`: without any."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=stream["authority"])
        if named:
            (folder / "caller.pem").write_text(stream["certificate"] + stream["key"])
            context.load_cert_chain(folder / "caller.pem")
        return cls(
            *await asyncio.open_connection(
                stream["host"], stream["port"], ssl=context, server_hostname=HUB
            )
        )

    async def say(self, *messages: Mapping[str, Any] | bytes) -> None:
        """Messages, or bytes as they are."""
        for one in messages:
            self.writer.write(
                one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n"
            )
        await self.writer.drain()

    async def hear(self) -> dict[str, Any] | None:
        """What the hub says; None at its end."""
        try:
            line = await self.reader.readline()
        except OSError:
            return None
        return json.loads(line) if line else None

    def leave(self) -> None:
        """Without a word."""
        self.writer.transport.abort()
