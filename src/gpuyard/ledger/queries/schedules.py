"""Reading schedules."""

import sqlalchemy as sa

from gpuyard.ledger.queries.base import LedgerReader, Row
from gpuyard.ledger.tables import schedules


class ScheduleQueries(LedgerReader):
    """Reads of schedules."""

    def schedules(self) -> list[Row]:
        """Every schedule, the oldest first."""
        return self._rows(sa.select(schedules).order_by(schedules.c.id))
