"""What only PostgreSQL can do to a ledger: be out of reach, and be somebody else's by
now.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs

from gpuyard.domain.errors import FencedError, LedgerError, LedgerUnreachableError
from gpuyard.ledger.lease import Lease, Member
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.writer import Writer
from tests.support.ledger import node_event
from tests.support.postgres import PostgresServer, running_server
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
def place(postgres: PostgresServer) -> str:
    return postgres.ledger()


@pytest.fixture
async def writer(ledger: Ledger) -> AsyncIterator[Writer]:
    made = ledger.writer()
    made.start()
    yield made
    await made.close()


async def put(writer: Writer, number: int) -> None:
    writer.add_events([node_event(number)])
    await writer.committed()


def numbers(ledger: Ledger) -> list[int]:
    return [row["info"]["number"] for row in ledger.queries.events_after(0, 10_000)]


def test_commits_are_durable_even_where_the_database_is_told_otherwise(
    place: str,
) -> None:
    with psycopg.connect(place, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    with capture_logs() as logged:
        ledger = Ledger.open(place)
    with ledger.engine.connect() as connection:
        shown = connection.execute(sa.text("SHOW synchronous_commit")).scalar()
    ledger.close()
    assert shown == "on"
    assert any("synchronous_commit=off" in entry["event"] for entry in logged)


async def test_a_connection_that_is_cut_is_made_anew(
    ledger: Ledger, place: str, postgres: PostgresServer
):
    heard: list[str] = []
    writer = ledger.writer(on_failure=lambda: heard.append("failure"))
    writer.start()
    await put(writer, 1)
    postgres.cut(place)
    with pytest.raises(
        LedgerUnreachableError,
        match=r"Cannot reach the database at 127.0.0.1:\d+/ledger_\d+; gpuyard "
        "will try again. Nothing that was acknowledged is lost",
    ):
        await put(writer, 2)
    await eventually(
        lambda: heard == ["failure"], "the writer to reach the database again"
    )
    await put(writer, 3)
    assert numbers(ledger) == [1, 3]
    await writer.close()


async def test_reading_goes_on_where_a_connection_was_cut(
    ledger: Ledger, place: str, postgres: PostgresServer
):
    assert ledger.queries.last_seq() == 0
    assert postgres.cut(place) > 0
    assert ledger.queries.last_seq() == 0


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that the test may stop."""
    with running_server() as server:
        yield server


async def test_a_database_that_is_away_for_a_while(own_server: PostgresServer):
    ledger = Ledger.open(own_server.ledger())
    heard: list[str] = []
    writer = ledger.writer(on_failure=lambda: heard.append("failure"))
    writer.start()
    await put(writer, 1)
    own_server.stop(signal.SIGQUIT)
    for number in (2, 3):
        with pytest.raises(LedgerUnreachableError):
            await put(writer, number)
    with pytest.raises(LedgerUnreachableError):
        ledger.queries.last_seq()
    assert heard == []
    own_server.start()
    await eventually(
        lambda: heard == ["failure"], "the writer to reach the database again"
    )
    await put(writer, 4)
    assert numbers(ledger) == [1, 4]
    await writer.close()
    ledger.close()


async def test_a_server_that_no_longer_leads_writes_nothing(ledger: Ledger, place: str):
    writer = ledger.writer()
    writer.epoch = ledger.queries.next_epoch()
    writer.start()
    await put(writer, 1)
    other = Ledger.open(place)
    assert other.queries.next_epoch() == writer.epoch + 1
    with pytest.raises(FencedError, match="Another server leads now"):
        await put(writer, 2)
    with pytest.raises(FencedError):
        await put(writer, 3)
    assert numbers(other) == [1]
    with pytest.raises(FencedError):
        await writer.close()
    other.close()


async def test_a_leader_that_is_stopped_in_the_middle_of_a_commit_is_replaced(
    ledger: Ledger, place: str
):
    former = Lease(ledger.engine, Member("a", "http://a", ""), ttl_s=0.1)
    term = former.acquire()
    assert term
    lock = f"SELECT epoch FROM lease WHERE epoch = {term.epoch} FOR KEY SHARE"
    other = Lease(ledger.engine, Member("b", "http://b", ""))
    with (
        psycopg.connect(place) as writer,
        pytest.raises(psycopg.OperationalError, match="server closed the connection"),
        writer.pipeline(),
    ):
        assert writer.execute(lock).fetchone() == (term.epoch,)
        # The writer says nothing more, not even that its statement is complete.
        next_term = None
        while next_term is None:
            next_term = await asyncio.to_thread(other.acquire)
    assert next_term.epoch == term.epoch + 1
    assert former.renew(term) is None


def test_only_servers_of_late_whose_urls_mean_the_same_here_are_dialled(
    ledger: Ledger,
) -> None:
    urls = {"a": "http://a", "b": "http://b", "c": "http://127.0.0.1:1"}
    for name, url in urls.items():
        Lease(ledger.engine, Member(name, url, f"digest of {name}", "there")).refresh()
    with ledger.engine.begin() as tx:
        tx.execute(
            sa.text(
                "UPDATE servers SET seen_at = seen_at - interval '2 hours'"
                " WHERE id = 'b'"
            )
        )
    me = Member("d", "http://127.0.0.1:2", "", "here")
    seen = Lease(ledger.engine, me).refresh()
    assert [member.id for member in seen.reachable] == ["a", "d"]
    # Its token is still known: it may come back.
    assert [member.id for member in seen.members] == ["a", "b", "c", "d"]


async def test_taking_the_lead_waits_for_the_commit_that_is_under_way_and_renewing_does_not(
    ledger: Ledger, place: str
):
    epoch = ledger.queries.next_epoch()
    other = Ledger.open(place)
    with ledger.engine.begin() as tx:
        tx.execute(
            sa.text(f"SELECT epoch FROM lease WHERE epoch = {epoch} FOR KEY SHARE")
        )
        with other.engine.begin() as renewal:
            renewal.execute(sa.text("UPDATE lease SET expires_at = clock_timestamp()"))
        taking = asyncio.create_task(asyncio.to_thread(other.queries.next_epoch))

        def waits() -> bool:
            with other.engine.connect() as looking:
                waiting = (
                    "SELECT count(*) FROM pg_stat_activity WHERE datname ="
                    " current_database() AND wait_event_type = 'Lock'"
                )
                return looking.execute(sa.text(waiting)).scalar_one() == 1

        await eventually(waits, "the other server to wait for the row")
        assert not taking.done()
    assert await taking == epoch + 1
    other.close()


async def test_writers_beside_each_other_leave_no_gap(ledger: Ledger, place: str):
    others = [Ledger.open(place) for _ in range(2)]
    writers = [opened.writer() for opened in others]
    for writer in writers:
        writer.start()

    async def write(writer: Writer, first: int) -> None:
        for number in range(first, first + 30):
            await put(writer, number)

    await asyncio.gather(*(write(writer, 100 * n) for n, writer in enumerate(writers)))
    rows = ledger.queries.events_after(0, 1000)
    assert [row["seq"] for row in rows] == list(range(1, 61))
    assert sorted(row["info"]["number"] for row in rows) == [
        *range(30),
        *range(100, 130),
    ]
    for writer, opened in zip(writers, others, strict=True):
        await writer.close()
        opened.close()


@pytest.mark.parametrize("database", ["gone", "missing"])
def test_a_database_that_is_not_there(postgres: PostgresServer, database: str):
    url = (
        postgres.url("missing")
        if database == "missing"
        else "postgresql://me:s3cret@127.0.0.1:9/instance"
    )
    with pytest.raises(LedgerError, match=r"annot be used|Cannot reach") as caught:
        Ledger.open(url)
    assert "s3cret" not in str(caught.value)
