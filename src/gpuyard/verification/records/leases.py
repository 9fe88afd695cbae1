"""Leases: locks between processes and hosts, that are free again some time after their holder died."""

import sqlalchemy as sa

from gpuyard.verification.records.base import Records
from gpuyard.verification.tables import leases


class LeaseRecords(Records):
    """Leases by name. Their clock is each holder's own: servers whose clocks are apart by less than a lease lasts agree
    on who has it."""

    def lease(self, name: str, holder: str, seconds: float) -> bool:
        """Take a lease that is free or `holder`'s already; False when it is another's."""
        now = self._now()
        with self.database.writing(lock=f"lease {name}") as tx:
            # Its row is locked, so that it is not renewed between the look and the change.
            found = tx.execute(sa.select(leases).where(leases.c.name == name).with_for_update()).first()
            if found and found.holder != holder and found.until > now:
                return False
            tx.execute(leases.delete().where(leases.c.name == name))
            tx.execute(leases.insert().values(name=name, holder=holder, until=now + seconds))
            return True

    def renew(self, name: str, holder: str, seconds: float) -> bool:
        """Hold a lease for another while; False when it is another's, or was let go."""
        mine = leases.update().where(leases.c.name == name, leases.c.holder == holder)
        with self.database.writing() as tx:
            return bool(tx.execute(mine.values(until=self._now() + seconds)).rowcount)

    def release(self, name: str, holder: str) -> None:
        """Let go of a lease."""
        with self.database.writing() as tx:
            tx.execute(leases.delete().where(leases.c.name == name, leases.c.holder == holder))
