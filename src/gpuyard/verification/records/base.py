"""What all records share."""

import time
from collections.abc import Callable

from gpuyard.verification.database import Database


class Records:
    """Questions to and changes of one database, each a short transaction; DatabaseError when it fails."""

    def __init__(self, database: Database, now: Callable[[], float] = time.time) -> None:
        """`now` gives UTC seconds."""
        self.database = database
        self._now = now
