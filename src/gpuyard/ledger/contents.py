"""Stores what jobs take along from their submission in the ledger's database, where
several servers share it: whichever of them starts a job has it.

It is outside the journal, and not the one writer's: each server writes on connections
of its own, little in one transaction, and rests in between. So no commit waits long for
large contents.
"""

import time
from collections.abc import (
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from gpuyard.domain.contents import (
    PART_BYTES,
    ContentKind,
    ContentMissingError,
    sha256_of,
)
from gpuyard.ledger.faults import as_ledger_errors
from gpuyard.ledger.side_tables import content_parts, contents

# At most so many contents in one statement.
_AT_ONCE = 200
# After each transaction, others have the database to themselves for so many times as
# long as it took.
_REST = 1.0
# To note each use of a content would be many writes.
_NOTED_S = 3600.0
Rows = Sequence[Mapping[str, Any]]


class LedgerContents:
    """The contents of one kind in a PostgreSQL database: see `domain/contents.py`.

    Each method may raise LedgerError. A large content is stored part by part, and is
    not `complete` before all of them are there.
    """

    def __init__(
        self,
        engine: sa.Engine,
        kind: ContentKind,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._single = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._kind = kind.value
        self._clock = clock

    # --- storing ---

    def keep(self, digests: Collection[str]) -> set[str]:
        """See Contents."""
        kept: set[str] = set()
        # Whoever locks several of these does it in the order of their digests.
        wanted = sorted(digests)
        for start in range(0, len(wanted), _AT_ONCE):
            kept |= self._keep(wanted[start : start + _AT_ONCE])
        return kept

    def _keep(self, digests: Sequence[str]) -> set[str]:
        now = self._clock()
        digest = contents.c.digest
        chosen = (contents.c.kind == self._kind, digest.in_(digests))
        old = (*chosen, contents.c.stored_at < now - _NOTED_S)
        lock_old = sa.select(digest).where(*old).order_by(digest).with_for_update()
        note_use = sa.update(contents).where(*old).values(stored_at=now)
        find_complete = sa.select(digest).where(*chosen, contents.c.complete)
        with as_ledger_errors(self._engine), self._engine.begin() as tx:
            if tx.execute(lock_old).first():
                tx.execute(note_use)
            return set(tx.execute(find_complete).scalars())

    def put(self, contents: Iterable[bytes]) -> list[str]:
        """See Contents. In memory are a few parts, or one larger content."""
        digests: list[str] = []
        for group in _groups(contents):
            names = [sha256_of(content) for content in group]
            digests += names
            given = dict(zip(names, group, strict=True))
            lacking = sorted(given.keys() - self.keep(given))
            self._put({digest: given[digest] for digest in lacking})
        return digests

    def _put(self, lacking: Mapping[str, bytes]) -> None:
        """Store a group: small contents, or one large one."""
        if any(len(content) > PART_BYTES for content in lacking.values()):
            self._write(self._heads(lacking, complete=False), [])
            for part in self._parts(lacking):
                self._write([], [part])
            self._write(self._heads(lacking, complete=True), [])
        elif lacking:
            parts = list(self._parts(lacking))
            self._write(self._heads(lacking, complete=True), parts)

    def _parts(self, lacking: Mapping[str, bytes]) -> Iterator[Mapping[str, Any]]:
        for digest, content in lacking.items():
            # An empty content has one, too.
            for start in range(0, max(len(content), 1), PART_BYTES):
                body = content[start : start + PART_BYTES]
                number = start // PART_BYTES
                yield {**self._key(digest), "number": number, "body": body}

    def _heads(self, lacking: Mapping[str, bytes], *, complete: bool) -> Rows:
        values = {"complete": complete, "stored_at": self._clock()}
        return [
            {**self._key(digest), "size": len(content), **values}
            for digest, content in lacking.items()
        ]

    def _key(self, digest: str) -> dict[str, str]:
        return {"kind": self._kind, "digest": digest}

    def _write(self, heads: Rows, parts: Rows) -> None:
        """Write these in one transaction."""
        with self._resting(), self._engine.begin() as tx:
            if heads:
                tx.execute(_STORE_HEAD, heads)
            if parts:
                tx.execute(_STORE_PART, parts)

    @contextmanager
    def _resting(self) -> Generator[None]:
        """Rest after what is done here. LedgerError."""
        began = time.monotonic()
        with as_ledger_errors(self._engine):
            yield
        time.sleep(_REST * (time.monotonic() - began))

    # --- reading ---

    def parts(self, digest: str) -> Iterator[bytes]:
        """See Contents."""
        left = 1
        number = 0
        while left > 0:
            values = {**self._key(digest), "number": number}
            with as_ledger_errors(self._engine), self._single.connect() as connection:
                row = connection.execute(_READ_PART, values).first()
            if row is None:
                raise ContentMissingError(digest)
            if number == 0:
                left = row.size
            left -= len(row.body)
            yield row.body
            number += 1

    # --- removing ---

    def stored_before(self, limit: float) -> set[str]:
        """See Contents."""
        chosen = (contents.c.kind == self._kind, contents.c.stored_at < limit)
        with as_ledger_errors(self._engine), self._single.connect() as connection:
            found = sa.select(contents.c.digest).where(*chosen)
            return set(connection.execute(found).scalars())

    def remove(self, digests: Collection[str], limit: float) -> None:
        """See Contents."""
        for digest in digests:
            values = {**self._key(digest), "before": limit}
            with self._resting(), self._single.connect() as connection:
                connection.execute(_REMOVE, values)


def _groups(contents: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Groups of small contents, of at most `PART_BYTES` together; a larger content is a
    group by itself.
    """
    group: list[bytes] = []
    size = 0
    for content in contents:
        is_full = len(group) == _AT_ONCE or size + len(content) > PART_BYTES
        if group and is_full:
            yield group
            group = []
            size = 0
        group.append(content)
        size += len(content)
    if group:
        yield group


_NEW_HEAD = insert(contents)
_STORE_HEAD = _NEW_HEAD.on_conflict_do_update(
    index_elements=["kind", "digest"],
    set_={
        "complete": sa.or_(contents.c.complete, _NEW_HEAD.excluded.complete),
        "stored_at": _NEW_HEAD.excluded.stored_at,
    },
)
_STORE_PART = insert(content_parts).on_conflict_do_nothing()
_THIS = (
    contents.c.kind == sa.bindparam("kind"),
    contents.c.digest == sa.bindparam("digest"),
)
_READ_PART = (
    sa.select(contents.c.size, content_parts.c.body)
    .join(
        content_parts,
        sa.and_(
            content_parts.c.kind == contents.c.kind,
            content_parts.c.digest == contents.c.digest,
        ),
    )
    .where(
        *_THIS, contents.c.complete, content_parts.c.number == sa.bindparam("number")
    )
)
# Its parts go with it.
_REMOVE = sa.delete(contents).where(
    *_THIS, contents.c.stored_at < sa.bindparam("before")
)
