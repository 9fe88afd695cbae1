"""What all records share."""

import time
from collections.abc import Callable, Sequence

from gpuyard.verification.database import Database


class RecordsBase:
    """Queries and changes of one database, each a short transaction; DatabaseError."""

    def __init__(
        self, database: Database, now: Callable[[], float] = time.time
    ) -> None:
        """`now` returns UTC seconds."""
        self.database = database
        self._now = now


# SQLite takes at least this many values in one statement.
_MOST_VALUES = 500


def chunks(values: Sequence[str]) -> list[Sequence[str]]:
    """The values in chunks that fit into one statement."""
    starts = range(0, len(values), _MOST_VALUES)
    return [values[start : start + _MOST_VALUES] for start in starts]
