"""Hearing that the journal has grown, on PostgreSQL: LISTEN and NOTIFY, with a look every two seconds behind them."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
import structlog

from gpuyard.domain.events import Event

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_CHANNEL = "gpuyard_journal"
_POLL_S = 2.0
log = structlog.get_logger(__name__)


class Announcer:
    """Tells the other servers that the journal has grown; what comes while it speaks is told together."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._grown = asyncio.Event()

    def announce(self, _first_seq: int, _events: Sequence[Event]) -> None:
        """Events were committed (a `writer.Committed`)."""
        self._grown.set()

    async def run(self) -> None:
        """Speak whenever there is something to say. One that is not heard is found by looking."""
        await _with_connection(self._engine, self._speak)

    async def _speak(self, connection: "AsyncConnection[Any]") -> None:
        while True:
            await self._grown.wait()
            self._grown.clear()
            await connection.execute(f"NOTIFY {_CHANNEL}")


async def growth(engine: sa.Engine) -> AsyncGenerator[None]:
    """Yields whenever the journal may have grown, whatever becomes of the connection meanwhile."""
    heard = asyncio.Event()

    async def listen(connection: "AsyncConnection[Any]") -> None:
        await connection.execute(f"LISTEN {_CHANNEL}")
        async for _ in connection.notifies():
            heard.set()

    listening = asyncio.create_task(_with_connection(engine, listen))
    try:
        while True:
            yield
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await heard.wait()
            heard.clear()
    finally:
        listening.cancel()


async def _with_connection(engine: sa.Engine, work: Callable[["AsyncConnection[Any]"], Awaitable[None]]) -> None:
    """Do `work` on a connection of its own, and again on the next one when that is lost."""
    import psycopg  # late: a server with a SQLite ledger has no use for it

    _, arguments = engine.dialect.create_connect_args(engine.url)
    while True:
        try:
            async with await psycopg.AsyncConnection.connect(**arguments, autocommit=True) as connection:
                await work(connection)
        except (psycopg.Error, OSError) as error:
            log.info("no word from the database for now", cause=type(error).__name__)
        await asyncio.sleep(_POLL_S)
