"""A process that writes a ledger until it is killed, saying what was acknowledged."""

import asyncio
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path

from gpuyard.ledger.ledger import Ledger
from tests.support.ledger import node_event


def write_until_killed(place: Path | str, said: Connection) -> None:
    """Write events, numbered on from the last; acknowledged numbers are sent to
    `said`.
    """
    asyncio.run(_write(Ledger.open(place), said))


async def _write(ledger: Ledger, said: Connection) -> None:
    writer = ledger.writer()
    writer.start()
    for number in count(ledger.queries.last_seq() + 1):
        # Several rows, so that a torn write could show.
        writer.add_events([node_event(number, reason="x" * (number % 3000))])
        if number % 3:
            await writer.committed()
            said.send(number)
