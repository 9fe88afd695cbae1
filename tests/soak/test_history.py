"""A short history: what the full one measures, by counts instead of times."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from gpuyard.ledger.replay import check
from tests.soak.history import (
    SimulatedInstance,
    build,
    live_through,
    settings_for,
)

JOBS = 1000
DAILY = 120
DAYS = 3
KEPT_EVENTS = 1000
# Nothing that retention does in one transaction changes more rows than this.
MOST_ROWS = 250


class Transactions:
    """How many rows each transaction of upkeep changed."""

    def __init__(self, instance: SimulatedInstance) -> None:
        self.rows: list[int] = []
        self._run = instance.core.writer._maintain
        instance.core.writer._maintain = self._counted

    def _counted(self, work: Callable[[sa.Connection], Any]) -> Any:
        def counting(tx: sa.Connection) -> Any:
            driver: Any = tx.connection.driver_connection
            before = driver.total_changes
            done = work(tx)
            self.rows.append(driver.total_changes - before)
            return done

        return self._run(counting)


@pytest.mark.slow
def test_history_ends_in_small_transactions_and_stays_flat(tmp_path: Path) -> None:
    days = JOBS / DAILY
    instance = SimulatedInstance(tmp_path, settings_for(JOBS, days, KEPT_EVENTS))
    build(instance.ledger, JOBS, days)
    assert check(instance.ledger.engine).ok
    transactions = Transactions(instance)
    reports = asyncio.run(live_through(instance, DAYS, DAILY, chatty=False))
    assert check(instance.ledger.engine).ok
    assert max(transactions.rows) <= MOST_ROWS
    assert len(transactions.rows) > DAYS
    for report in reports:
        assert report.removed["jobs"] > 0
        assert report.removed["usage"] > 0
        assert report.job_rows <= JOBS + DAILY
    assert reports[-1].removed["events"] > 0
    assert instance.ledger.queries.journal_length() < KEPT_EVENTS + 5 * DAILY
    instance.ledger.close()
