"""A write-ahead log that the power failed in the middle of: what was synced before it
is there, and is consistent.
"""

import os
import shutil
from pathlib import Path

import pytest
import sqlalchemy as sa

from gpuyard.ledger import log_flush
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.replay import check
from tests.support.ledger import node_event

pytestmark = pytest.mark.anyio


async def test_a_torn_log_opens_at_the_last_whole_commit(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Nothing is copied from the log into the ledger's file meanwhile.
    monkeypatch.setattr(log_flush, "PERIOD_S", 3600.0)
    ledger = Ledger.open(path)
    writer = ledger.writer()
    writer.start()
    sizes: list[int] = []
    log = path.with_name("ledger.db-wal")
    for number in range(1, 21):
        writer.add_events([node_event(number, reason="x" * 3000)])
        await writer.committed()
        sizes.append(log.stat().st_size)
    # The files as they are at this moment: closing the ledger would fold the log into
    # it.
    for cut in (sizes[-1] - 1, sizes[-2] + 100, sizes[9] + 5000, sizes[4], 40, 0):
        torn = tmp_path / f"torn-{cut}"
        torn.mkdir()
        shutil.copy(path, torn)
        shutil.copy(log, torn)
        os.truncate(torn / log.name, cut)
        opened = Ledger.open(torn / path.name)
        whole = sum(size <= cut for size in sizes)
        assert [
            row["info"]["number"] for row in opened.queries.events_after(0, 100)
        ] == list(range(1, whole + 1))
        assert check(opened.engine).ok
        with opened.engine.connect() as connection:
            assert (
                connection.execute(sa.text("PRAGMA integrity_check")).scalar() == "ok"
            )
        opened.close()
    await writer.close()
    ledger.close()
