"""What two servers do to one PostgreSQL at the same moment, one of them stopped in the
middle of a transaction.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from gpuyard.verification.database import Database
from gpuyard.verification.records import Records
from tests.support.postgres import PostgresServer
from tests.support.verification import HandClock
from tests.support.wait import wait_until


@pytest.fixture
def place(postgres: PostgresServer) -> str:
    return postgres.create()


@contextmanager
def meanwhile(work: Callable[[], Any]) -> Iterator[list[Any]]:
    """`work` in a thread; what it gave, which is there once the block has been left."""
    given: list[Any] = []
    thread = threading.Thread(target=lambda: given.append(work()))
    thread.start()
    yield given
    thread.join(30)
    assert not thread.is_alive()


def waits(postgres: PostgresServer, place: str) -> bool:
    """Whether somebody waits for a lock there."""
    name = place.rsplit("/", 1)[1]
    return bool(
        postgres.execute(
            "select 1 from pg_locks l join pg_stat_activity a using (pid) "
            f"where not granted and a.datname = '{name}'"
        )
    )


def test_a_lock_that_is_renewed_at_the_last_moment_is_nobody_elses(
    postgres: PostgresServer, place: str, records: Records, clock: HandClock
):
    assert records.lease("x", "one", 60)
    clock.advance(60)
    with psycopg.connect(place) as slow:
        slow.execute(
            "update verification.leases set until = %s where name = 'x'",
            [clock.now() + 60],
        )
        with meanwhile(lambda: records.lease("x", "two", 60)) as given:
            wait_until(lambda: waits(postgres, place), what="the other to wait")
            slow.commit()
    assert given == [False]
    assert records.renew("x", "one", 60), "it is held"


def test_a_server_that_is_stopped_in_a_transaction_holds_others_up_for_a_moment_only(
    place: str,
):
    """Its host may be gone without a word, and PostgreSQL would keep its locks for
    hours.
    """
    stopped = Database.open(place)
    other = Database.open(place)
    with (
        pytest.raises(Exception, match="cannot be used"),
        stopped.writing(lock="series a6000") as tx,
    ):
        with meanwhile(lambda: Records(other).lease("x", "two", 60)) as given:
            pass
        assert given == [True]
        # Waits until the other one has lost it.
        with other.writing(lock="series a6000"):
            pass
        tx.exec_driver_sql("select 1")
