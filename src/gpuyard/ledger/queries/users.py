"""Reading users and their tokens."""

import sqlalchemy as sa

from gpuyard.ledger.people_tables import tokens, users
from gpuyard.ledger.queries.base import LedgerReader, Row


class UserQueries(LedgerReader):
    """Reads of users and tokens."""

    def users(self) -> list[Row]:
        """Every user, by name."""
        return self._rows(sa.select(users).order_by(users.c.name))

    def tokens(self) -> list[Row]:
        """Every token that was not revoked, the oldest first."""
        return self._rows(sa.select(tokens).order_by(tokens.c.id))
