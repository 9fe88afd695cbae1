"""Tells servers that the journal has grown, on PostgreSQL: by LISTEN and NOTIFY, and by
a check every two seconds in case a notification is lost.
"""

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
    """Tells the other servers that the journal has grown. Commits during a notification
    share the next one.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._grown = asyncio.Event()

    def announce(self, _first_seq: int, _events: Sequence[Event]) -> None:
        """Note that events were committed (a `writer.Committed`)."""
        self._grown.set()

    async def run(self) -> None:
        """Send notifications for ever.

        If one is lost, the other servers find the events by their checks.
        """
        await _with_connection(self._engine, self._notify)

    async def _notify(self, connection: "AsyncConnection[Any]") -> None:
        while True:
            await self._grown.wait()
            self._grown.clear()
            await connection.execute(f"NOTIFY {_CHANNEL}")


async def journal_growth(engine: sa.Engine) -> AsyncGenerator[None]:
    """Yields whenever the journal may have grown, even while the connection is lost."""
    notified = asyncio.Event()

    async def listen(connection: "AsyncConnection[Any]") -> None:
        await connection.execute(f"LISTEN {_CHANNEL}")
        async for _ in connection.notifies():
            notified.set()

    listening = asyncio.create_task(_with_connection(engine, listen))
    try:
        while True:
            yield
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await notified.wait()
            notified.clear()
    finally:
        listening.cancel()


async def _with_connection(
    engine: sa.Engine, work: Callable[["AsyncConnection[Any]"], Awaitable[None]]
) -> None:
    """Run `work` on a connection of its own, and again on a new one when that is
    lost.
    """
    import psycopg  # late: a server with a SQLite ledger does not need it

    _, arguments = engine.dialect.create_connect_args(engine.url)
    while True:
        connect = psycopg.AsyncConnection.connect
        try:
            async with await connect(**arguments, autocommit=True) as connection:
                await work(connection)
        except (psycopg.Error, OSError) as error:
            log.info(
                "the database sends no notifications for now",
                cause=type(error).__name__,
            )
        await asyncio.sleep(_POLL_S)
