"""Leases: locks between processes and hosts, which expire after their holder dies."""

import sqlalchemy as sa

from gpuyard.verification.records.base import RecordsBase
from gpuyard.verification.tables import leases

# Leases of holders that died, with names that nobody takes again.
_KEPT_S = 86400.0


class LeaseRecords(RecordsBase):
    """Leases by name.

    Each holder uses its own clock, so the clocks must differ by less than a lease
    lasts.
    """

    def lease(self, name: str, holder: str, seconds: float) -> bool:
        """Take a free lease, or one of this holder; False when another has it."""
        now = self._now()
        with self.database.writing(lock=f"lease {name}") as tx:
            # Before it holds a row of its own: two that do this must not wait for each
            # other.
            tx.execute(leases.delete().where(leases.c.until < now - _KEPT_S))
            # Lock the row, so that it is not renewed between reading and writing.
            found = tx.execute(
                sa.select(leases).where(leases.c.name == name).with_for_update()
            ).first()
            if found and found.holder != holder and found.until > now:
                return False
            tx.execute(leases.delete().where(leases.c.name == name))
            tx.execute(
                leases.insert().values(name=name, holder=holder, until=now + seconds)
            )
            return True

    def first_lease(self, ending: str) -> str | None:
        """The first name of a lease that somebody has now, of those with this ending;
        None if there is none.
        """
        wanted = sa.select(leases.c.name).where(
            leases.c.name.endswith(ending, autoescape=True),
            leases.c.until > self._now(),
        )
        with self.database.reading() as tx:
            names = tx.scalars(wanted).all()
        # SQLite takes upper and lower case for the same.
        return min((name for name in names if name.endswith(ending)), default=None)

    def renew(self, name: str, holder: str, seconds: float) -> bool:
        """Extend a lease; False when it was released or another has it."""
        mine = leases.update().where(leases.c.name == name, leases.c.holder == holder)
        with self.database.writing() as tx:
            return bool(tx.execute(mine.values(until=self._now() + seconds)).rowcount)

    def release(self, name: str, holder: str) -> None:
        """Release a lease."""
        with self.database.writing() as tx:
            tx.execute(
                leases.delete().where(leases.c.name == name, leases.c.holder == holder)
            )
