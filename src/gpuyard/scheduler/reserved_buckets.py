"""The ranked buckets of jobs for whose project or user something is reserved, by whose
they are: so a pass of reservations looks at those of the holder only.
"""

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpuyard.scheduler.parties import NO_SHARES, ShareKey
from gpuyard.scheduler.ranking import Rank

if TYPE_CHECKING:
    from gpuyard.scheduler.queue import Bucket, RankedLine


class ReservedBuckets:
    """Adding and removing a bucket cost O(log n). Buckets without reservations are left
    out.
    """

    __slots__ = ("_by_line", "_lines")

    def __init__(self) -> None:
        self._lines: dict[ShareKey, RankedLine] = {}
        # How many there are in each line of the queue.
        self._by_line = Counter[ShareKey]()

    def add(self, rank: Rank, bucket: "Bucket") -> None:
        """A bucket has this rank now."""
        reserved_for = bucket[-1].reserved_for
        if reserved_for != NO_SHARES:
            insort(self._lines.setdefault(reserved_for, []), (rank, bucket))
            self._by_line[bucket[-1].line] += 1

    def remove(self, rank: Rank, bucket: "Bucket") -> None:
        """The bucket, which had this rank, has it no more."""
        reserved_for = bucket[-1].reserved_for
        if reserved_for == NO_SHARES:
            return
        line = self._lines[reserved_for]
        del line[bisect_left(line, (rank, bucket))]
        if not line:
            del self._lines[reserved_for]
        queued_in = bucket[-1].line
        self._by_line[queued_in] -= 1
        if not self._by_line[queued_in]:
            del self._by_line[queued_in]

    def clear(self) -> None:
        """No bucket is ranked any more."""
        self._lines.clear()
        self._by_line.clear()

    @property
    def queued_in(self) -> Iterable[ShareKey]:
        """The lines of the queue in which any of them is."""
        return self._by_line.keys()

    def is_in(self, line: ShareKey) -> bool:
        """True if any of them is in this line of the queue."""
        return line in self._by_line

    def from_rank(self, rank: Rank) -> "RankedLine":
        """The buckets from this rank on, in order."""
        lines = self._lines.values()
        return list(
            heapq.merge(*(line[bisect_left(line, (rank,)) :] for line in lines))
        )

    def held_by(self, project: str | None, user: str | None) -> "RankedLine":
        """The buckets of the project, or else of the user, in order."""
        whose = user if project is None else project
        position = 1 if project is None else 0
        lines = [
            line
            for reserved_for, line in self._lines.items()
            if reserved_for[position] == whose
        ]
        return list(heapq.merge(*lines))
