"""What jobs take along, in the database that several servers share."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import event

from gpuyard.domain.contents import PART_BYTES, ContentKind, ContentMissingError
from gpuyard.ledger import contents as module
from gpuyard.ledger.contents import LedgerContents
from gpuyard.ledger.ledger import Ledger
from gpuyard.storage.code_snapshots import CodeLimits, CodeReader
from gpuyard.storage.code_store import CodeMissingError, CodeStore
from gpuyard.storage.contents import LayeredContents, folder_stores, read_whole
from tests.support.postgres import PostgresServer

DAY_S = 86400.0


@pytest.fixture
def place(postgres: PostgresServer) -> str:
    return postgres.ledger()


@pytest.fixture(autouse=True)
def no_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REST", 0.0)


@pytest.fixture
def files(ledger: Ledger) -> LedgerContents:
    return ledger.contents(ContentKind.FILE)


@pytest.fixture
def transactions(ledger: Ledger) -> Iterator[list[int]]:
    """How many bytes each transaction wrote."""
    sizes = [0]

    def note(_1: object, _2: object, _3: object, given: Any, *_4: object) -> None:
        rows: list[dict[str, Any]] = given if isinstance(given, list) else [given]
        sizes[-1] += sum(
            len(value.obj)
            for row in rows
            for value in row.values()
            if isinstance(value, psycopg.Binary)
        )

    def end(_: object) -> None:
        sizes.append(0)

    event.listen(ledger.engine, "before_cursor_execute", note)
    event.listen(ledger.engine, "commit", end)
    yield sizes
    event.remove(ledger.engine, "before_cursor_execute", note)
    event.remove(ledger.engine, "commit", end)


def test_no_transaction_writes_much(
    files: LedgerContents, transactions: list[int]
) -> None:
    large = bytes(range(256)) * (3 * PART_BYTES // 256) + b"end"
    small = [b"", b"a" * (PART_BYTES - 1), b"b" * 10, b"", *map(str.encode, "xyz")]
    digests = files.put([large, *small])
    contents = dict(zip(digests, [large, *small], strict=True))
    assert {digest: read_whole(files, digest) for digest in digests} == contents
    assert max(len(part) for part in files.parts(digests[0])) == PART_BYTES
    assert sum(transactions) == sum(map(len, {large, *small}))
    assert max(transactions) <= PART_BYTES
    transactions.clear()
    transactions.append(0)
    assert files.put([large, *small]) == digests
    assert sum(transactions) == 0, "what is there is not sent again"


def test_a_content_that_was_cut_off_is_not_there_and_can_be_stored_again(
    files: LedgerContents, ledger: Ledger
) -> None:
    content = b"0123456789abcdef" * (PART_BYTES // 8)
    (digest,) = files.put([content])
    with ledger.engine.begin() as tx:
        tx.execute(sa.text("UPDATE contents SET complete = false"))
        tx.execute(sa.text("DELETE FROM content_parts WHERE number = 1"))
    assert files.keep([digest]) == set()
    with pytest.raises(ContentMissingError):
        read_whole(files, digest)
    assert files.put([content]) == [digest]
    assert read_whole(files, digest) == content


def test_what_is_used_again_is_not_removed(ledger: Ledger) -> None:
    now = 1e9
    kinds = (ContentKind.ENVIRONMENT, ContentKind.FILE)
    places = [ledger.contents(kind, lambda: now) for kind in kinds]
    environments, files = places
    (old, again) = files.put([b"old", b"again"])
    assert environments.keep([old]) == set(), "each kind has its own"
    now += 2 * DAY_S
    limit = now - DAY_S
    assert files.stored_before(limit) == {old, again}
    assert files.keep([again, "0" * 64]) == {again}
    files.remove([old, again], limit)
    assert files.stored_before(now + 1) == {again}
    with ledger.engine.connect() as connection:
        bodies = connection.execute(sa.text("SELECT body FROM content_parts"))
        assert list(bodies.scalars()) == [b"again"]


def test_code_is_stored_as_in_a_home_and_what_is_there_from_before_is_found(
    ledger: Ledger, tmp_path: Path
) -> None:
    in_home = folder_stores(tmp_path / "home")

    def stores(kind: ContentKind) -> LayeredContents:
        return LayeredContents(ledger.contents(kind), in_home(kind))

    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("1")
    limits = CodeLimits(files=10, bytes=1000)
    before = CodeReader(CodeStore(in_home)).take(project, limits)
    store = CodeStore(stores, clock=lambda: time.time() + 2 * DAY_S)
    (project / "train.py").write_text("2")
    after = CodeReader(store).take(project, limits)
    shared = CodeStore(ledger.contents)
    assert shared.file(shared.get(after).entries[0].sha256) == b"2"
    with pytest.raises(CodeMissingError):
        shared.get(before)
    (entry,) = store.get(before).entries
    assert store.file(entry.sha256) == b"1"
    assert store.not_stored_lately() == {before, after}
    store.remove([before])
    with pytest.raises(CodeMissingError):
        store.file(entry.sha256)
    assert store.not_stored_lately() == {after}
