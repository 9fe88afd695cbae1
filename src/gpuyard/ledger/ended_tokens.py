"""Ends the tokens of all users in a ledger with which no server works: a backup that is
put back must not bring back those that were revoked since.
"""

import asyncio
import time

from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.ledger.ledger import Ledger


def end_tokens(ledger: Ledger) -> int:
    """Revoke the token of every user; how many there were. LedgerError."""
    now = time.time()
    events = [
        Event(
            EventKind.TOKEN_REVOKED,
            now,
            (Change(Table.TOKENS, row["id"], None),),
            None,
            {"token": row["id"], "user": row["user"], "name": row["name"]},
        )
        for row in ledger.queries.tokens()
    ]
    if events:
        asyncio.run(_write(ledger, events))
    return len(events)


async def _write(ledger: Ledger, events: list[Event]) -> None:
    writer = ledger.writer()
    writer.start()
    writer.add_events(events)
    await writer.close()
