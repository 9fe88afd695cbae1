"""Leases: locks between processes and hosts, which expire after their holder dies."""

import sqlalchemy as sa

from gpuyard.verification.records.base import RecordsBase
from gpuyard.verification.tables import leases


class LeaseRecords(RecordsBase):
    """Leases by name.

    Each holder uses its own clock, so the clocks must differ by less than a lease
    lasts.
    """

    def lease(self, name: str, holder: str, seconds: float) -> bool:
        """Take a free lease, or one of this holder; False when another has it."""
        now = self._now()
        with self.database.writing(lock=f"lease {name}") as tx:
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

    def is_leased(self, name: str) -> bool:
        """Whether anybody has a lease now."""
        wanted = sa.select(leases.c.until).where(leases.c.name == name)
        with self.database.reading() as tx:
            until = tx.scalar(wanted)
        return until is not None and until > self._now()

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
