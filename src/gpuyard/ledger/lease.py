"""The lease: which of the servers on one PostgreSQL leads, and the roll of all of them.

The lease is one row and its clock is the database's: whoever finds it run out takes it, with a new epoch. The writer of
a leader that was replaced is refused by that epoch (`ledger.apply.hold_order`), whatever its own clock says.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError

from gpuyard.ledger.faults import ledger_error, place
from gpuyard.ledger.tables import LEASE, lease, servers

TTL_S = 3.0
# Servers that have been away for longer are forgotten, and their tokens with them.
_KEPT_ON_ROLL_S = 30 * 86400.0


@dataclass(frozen=True, slots=True)
class Term:
    """A time of leading. `ends_at`, on this process's monotonic clock, comes before the database says it is over."""

    epoch: int
    ends_at: float


@dataclass(frozen=True, slots=True)
class Member:
    """A server on the roll. Its token stands there only as a digest, by which the others know it."""

    id: str
    url: str
    token_sha256: str


@dataclass(frozen=True, slots=True)
class Standing:
    """Who holds or held the lease, for how long it still runs (negative: it has run out), and all servers."""

    leader: Member | None
    left_s: float
    members: Sequence[Member]


class Lease:
    """The lease as the server `me` sees it. Every call is one short transaction; LedgerError when it fails."""

    def __init__(self, engine: sa.Engine, me: Member, ttl_s: float = TTL_S) -> None:
        self._engine = engine
        self._calls = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._me = me
        self._ttl_s = ttl_s

    def look(self) -> Standing:
        """Sign the roll, and see who leads."""
        self._rows(_sign_roll, {"id": self._me.id, "url": self._me.url, "token_sha256": self._me.token_sha256})
        rows = self._rows(_read_roll, {"kept_s": _KEPT_ON_ROLL_S})
        members = [Member(row["id"], row["url"], row["token_sha256"]) for row in rows]
        (row,) = self._rows(_read_lease)
        known = {member.id: member for member in members}
        left_s = -1.0 if row["left_s"] is None else float(row["left_s"])
        return Standing(known.get(row["holder"]), left_s, members)

    def acquire(self) -> Term | None:
        """Take the lease if it has run out, or was this server's; None when another holds it."""
        return self._term(_acquire, {"holder": self._me.id, "url": self._me.url})

    def renew(self, term: Term) -> Term | None:
        """Hold it for another while; None when another server took it."""
        return self._term(_renew, {"known": term.epoch})

    def release(self, term: Term) -> None:
        """Let the next one have it at once."""
        self._rows(_release, {"known": term.epoch})

    def _term(self, statement: sa.Executable, values: dict[str, Any]) -> Term | None:
        asked_at = time.monotonic()
        rows = self._rows(statement, {**values, "ttl_s": self._ttl_s})
        return Term(int(rows[0]["epoch"]), asked_at + self._ttl_s) if rows else None

    def _rows(self, statement: sa.Executable, values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        try:
            with self._calls.connect() as connection:
                result = connection.execute(statement, values)
                return [dict(row) for row in result.mappings()] if result.returns_rows else []
        except DBAPIError as error:
            raise ledger_error(error, place(self._engine)) from error


_now = sa.func.clock_timestamp()
_until = _now + sa.func.make_interval(0, 0, 0, 0, 0, 0, sa.bindparam("ttl_s", type_=sa.Float))
_left_s = sa.extract("epoch", lease.c.expires_at - _now).label("left_s")
_read_lease = sa.select(lease.c.holder, _left_s).where(lease.c.name == LEASE)
# A server that started over takes its lease again at once, with a new epoch: its former self is gone.
_mine_before = lease.c.holder == sa.bindparam("holder")
_free = sa.or_(lease.c.expires_at.is_(None), lease.c.expires_at < _now)
_acquire = (
    sa.update(lease)
    .where(lease.c.name == LEASE, sa.or_(_mine_before, _free))
    .values(epoch=lease.c.epoch + 1, holder=sa.bindparam("holder"), url=sa.bindparam("url"), expires_at=_until)
    .returning(lease.c.epoch)
)
_mine = (lease.c.name == LEASE, lease.c.epoch == sa.bindparam("known"))
_renew = sa.update(lease).where(*_mine).values(expires_at=_until).returning(lease.c.epoch)
_release = sa.update(lease).where(*_mine).values(expires_at=None)
_age_s = sa.extract("epoch", _now - servers.c.seen_at)
_read_roll = sa.select(servers).where(_age_s < sa.bindparam("kept_s")).order_by(servers.c.id)
_entry = postgresql.insert(servers).values(
    id=sa.bindparam("id"), url=sa.bindparam("url"), token_sha256=sa.bindparam("token_sha256"), seen_at=_now
)
_sign_roll = _entry.on_conflict_do_update(
    index_elements=["id"],
    set_={"url": _entry.excluded.url, "token_sha256": _entry.excluded.token_sha256, "seen_at": _now},
)
