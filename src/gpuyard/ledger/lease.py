"""The lease decides which of the servers on one PostgreSQL database leads. This module
also keeps the list of all these servers.

The lease is one row, and the database's clock counts: a server that finds it expired
takes it, with a new epoch. A leader that was replaced cannot write any more, because
its writer is refused by its old epoch (`ledger.apply.begin_group`), whatever its own
clock says.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from gpuyard.config.dialling import is_loopback
from gpuyard.ledger.faults import ledger_error, place
from gpuyard.ledger.side_tables import LEASE, lease, servers

TTL_S = 3.0
# Longer than any healthy leader takes to commit a group.
_LOCK_TIMEOUT_MS = 1000
_LOCK_NOT_AVAILABLE = "55P03"
# Servers that were away for longer are forgotten, and their tokens with them.
_KEPT_S = 30 * 86400.0
# One that was away for longer is not dialled: somebody else may have its address.
_DIALLED_S = 3600.0


@dataclass(frozen=True, slots=True)
class Term:
    """The time for which this server leads.

    `ends_at`, on this process's monotonic clock, is before the end by the database's
    clock.
    """

    epoch: int
    ends_at: float


@dataclass(frozen=True, slots=True)
class Member:
    """A server in the list.

    The list holds only a digest of its token, by which the others recognise it.
    `loopback` is its host, as in `config/dialling.py:loopback_id`; empty if unknown.
    """

    id: str
    url: str
    token_sha256: str
    loopback: str = ""

    @property
    def on_loopback(self) -> bool:
        """Whether each host reads its URL as an address of its own."""
        return is_loopback(urlsplit(self.url).hostname)

    def reaches(self, other: "Member") -> bool:
        """Whether the URL of `other` means the same here as there."""
        return not other.on_loopback or other.loopback in ("", self.loopback)


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """Who holds or held the lease, how long it is still valid (negative: it has
    expired), all servers, and those of them that may be dialled.
    """

    leader: Member | None
    left_s: float
    members: Sequence[Member]
    reachable: Sequence[Member]


class Lease:
    """The lease as seen by the server `me`.

    Every call is one short transaction and raises LedgerError when it fails.
    """

    def __init__(self, engine: sa.Engine, me: Member, ttl_s: float = TTL_S) -> None:
        self._engine = engine
        self._calls = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._me = me
        self._ttl_s = ttl_s

    def refresh(self) -> LeaseStatus:
        """Renew this server's entry in the list, and read who leads."""
        self._register(self._me)
        return self._read()

    def introduce(self, me: Member) -> LeaseStatus:
        """As `refresh`, with another entry for this server from now on. LedgerError:
        the next refresh puts the former one back.
        """
        self._register(me)
        status = self._read()
        self._me = me
        return status

    def _register(self, me: Member) -> None:
        entry = {
            "id": me.id,
            "url": me.url,
            "token_sha256": me.token_sha256,
            "loopback": me.loopback,
        }
        self._rows(_register(), entry)

    def _read(self) -> LeaseStatus:
        members = self.seen_within(_KEPT_S)
        recent = self.seen_within(_DIALLED_S)
        (row,) = self._rows(_read_lease)
        known = {member.id: member for member in members}
        left_s = -1.0 if row["left_s"] is None else float(row["left_s"])
        reachable = [member for member in recent if self._me.reaches(member)]
        return LeaseStatus(known.get(row["holder"]), left_s, members, reachable)

    def seen_within(self, seconds: float) -> list[Member]:
        """The servers that have renewed their entry in this time."""
        rows = self._rows(_read_servers, {"kept_s": seconds})
        return [
            Member(row["id"], row["url"], row["token_sha256"], row["loopback"] or "")
            for row in rows
        ]

    def acquire(self) -> Term | None:
        """Take the lease if it has expired or was this server's; None when another
        server holds it.

        Also None while a leader that was suspended during a commit still locks the row.
        Its session is then ended, and the next call can take the lease.
        """
        asked_at = time.monotonic()
        values = {
            "holder": self._me.id,
            "url": self._me.url,
            "ttl_s": self._ttl_s,
        }
        try:
            with self._engine.begin() as tx:
                tx.exec_driver_sql(f"SET LOCAL lock_timeout = {_LOCK_TIMEOUT_MS}")
                epoch = tx.execute(_acquire, values).scalar()
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", "") != _LOCK_NOT_AVAILABLE:
                raise ledger_error(error, place(self._engine)) from error
            self._rows(_end_writers)
            return None
        return None if epoch is None else Term(int(epoch), asked_at + self._ttl_s)

    def renew(self, term: Term) -> Term | None:
        """Extend the term; None when another server took the lease."""
        return self._term(_renew, {"known": term.epoch})

    def release(self, term: Term) -> None:
        """End the term, so that another server can lead at once."""
        self._rows(_release, {"known": term.epoch})

    def _term(self, statement: sa.Executable, values: dict[str, Any]) -> Term | None:
        asked_at = time.monotonic()
        rows = self._rows(statement, {**values, "ttl_s": self._ttl_s})
        return Term(int(rows[0]["epoch"]), asked_at + self._ttl_s) if rows else None

    def _rows(
        self, statement: sa.Executable, values: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        try:
            with self._calls.connect() as connection:
                result = connection.execute(statement, values)
                if not result.returns_rows:
                    return []
                return [dict(row) for row in result.mappings()]
        except DBAPIError as error:
            raise ledger_error(error, place(self._engine)) from error


_now = sa.func.clock_timestamp()
_until = _now + sa.func.make_interval(
    0, 0, 0, 0, 0, 0, sa.bindparam("ttl_s", type_=sa.Float)
)
_left_s = sa.extract("epoch", lease.c.expires_at - _now).label("left_s")
_read_lease = sa.select(lease.c.holder, _left_s).where(lease.c.name == LEASE)
# A restarted server takes its lease again at once, with a new epoch: its earlier
# process has ended.
_mine_before = lease.c.holder == sa.bindparam("holder")
_free = sa.or_(lease.c.expires_at.is_(None), lease.c.expires_at < _now)
_acquire = (
    sa.update(lease)
    .where(lease.c.name == LEASE, sa.or_(_mine_before, _free))
    .values(
        epoch=lease.c.epoch + 1,
        holder=sa.bindparam("holder"),
        url=sa.bindparam("url"),
        expires_at=_until,
    )
    .returning(lease.c.epoch)
)
_mine = (lease.c.name == LEASE, lease.c.epoch == sa.bindparam("known"))
_renew = (
    sa.update(lease).where(*_mine).values(expires_at=_until).returning(lease.c.epoch)
)
# Only a writer takes this lock. Its session may wait for the rest of a pipeline, and
# PostgreSQL has no limit for that (`idle_in_transaction_session_timeout` is for whole
# statements).
_end_writers = sa.text(
    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE relation ="
    " CAST('lease' AS regclass) AND database = (SELECT oid FROM pg_database WHERE"
    " datname = current_database()) AND mode = 'RowShareLock' AND granted"
)
_release = sa.update(lease).where(*_mine).values(expires_at=None)
_age_s = sa.extract("epoch", _now - servers.c.seen_at)
_read_servers = (
    sa.select(servers).where(_age_s < sa.bindparam("kept_s")).order_by(servers.c.id)
)


@cache
def _register() -> sa.Insert:
    # Late: a server whose ledger is a file needs no dialect of PostgreSQL, which takes
    # 2 MB.
    from sqlalchemy.dialects import postgresql

    entry = postgresql.insert(servers).values(
        id=sa.bindparam("id"),
        url=sa.bindparam("url"),
        token_sha256=sa.bindparam("token_sha256"),
        loopback=sa.bindparam("loopback"),
        seen_at=_now,
    )
    return entry.on_conflict_do_update(
        index_elements=["id"],
        set_={
            "url": entry.excluded.url,
            "token_sha256": entry.excluded.token_sha256,
            "loopback": entry.excluded.loopback,
            "seen_at": _now,
        },
    )
