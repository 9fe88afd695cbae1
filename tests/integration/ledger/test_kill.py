"""`kill -9` of the process that writes, at any moment: what it was told is written is
there.
"""

import multiprocessing
import random
from contextlib import suppress
from multiprocessing.context import ForkServerContext
from pathlib import Path

import sqlalchemy as sa

from gpuyard.ledger.ledger import Ledger
from tests.support.ledger_writer import write_until_killed

ROUNDS = 20


def test_nothing_acknowledged_is_lost_and_nothing_is_torn(place: Path | str):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gpuyard.ledger.ledger"])
    moments = random.Random(1)
    acknowledged = 0
    for _ in range(ROUNDS):
        heard = killed_after(context, place, moments.randint(1, 40))
        assert heard > acknowledged, "the writer of this round did not get on"
        acknowledged = heard
        found = check(place)
        assert found >= acknowledged, f"{acknowledged} was acknowledged and is lost"


def killed_after(
    context: ForkServerContext, place: Path | str, acknowledgements: int
) -> int:
    """Let a new process write until it has acknowledged so often, then kill it; the
    last number it told.
    """
    hearing, saying = context.Pipe(duplex=False)
    process = context.Process(
        target=write_until_killed, args=(place, saying), daemon=True
    )
    process.start()
    saying.close()
    last = 0
    for _ in range(acknowledgements):
        assert hearing.poll(30), "the writer says nothing"
        last = hearing.recv()
    process.kill()
    process.join()
    with suppress(EOFError, OSError):
        while True:
            last = hearing.recv()
    return last


def check(place: Path | str) -> int:
    """Open as a new server does; the last number.

    The journal has no gap and the tables are its fold.
    """
    ledger = Ledger.open(place)
    try:
        if isinstance(place, Path):
            with ledger.engine.connect() as connection:
                assert (
                    connection.execute(sa.text("PRAGMA integrity_check")).scalar()
                    == "ok"
                )
        rows = ledger.queries.events_after(0, 1_000_000)
        numbers = [row["info"]["number"] for row in rows]
        assert numbers == list(range(1, len(numbers) + 1))
        assert {node["id"] for node in ledger.queries.nodes()} == {
            f"node-{number:05d}" for number in numbers
        }
        return numbers[-1]
    finally:
        ledger.close()
