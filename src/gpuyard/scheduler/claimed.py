"""The ranked buckets of jobs for whose project or user something is reserved, by whose
they are: so a pass of reservations looks at those of the holder only.
"""

import heapq
from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from gpuyard.scheduler.parties import ONE_LINE, Line
from gpuyard.scheduler.ranking import Rank

if TYPE_CHECKING:
    from gpuyard.scheduler.queue import Bucket, RankedLine


class ClaimedBuckets:
    """Adding and removing a bucket cost O(log n). Buckets without claims are left
    out.
    """

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: dict[Line, RankedLine] = {}

    def add(self, rank: Rank, bucket: "Bucket") -> None:
        """A bucket has this rank now."""
        claims = bucket[-1].claims
        if claims != ONE_LINE:
            insort(self._lines.setdefault(claims, []), (rank, bucket))

    def remove(self, rank: Rank, bucket: "Bucket") -> None:
        """The bucket, which had this rank, has it no more."""
        claims = bucket[-1].claims
        if claims == ONE_LINE:
            return
        line = self._lines[claims]
        del line[bisect_left(line, (rank, bucket))]
        if not line:
            del self._lines[claims]

    def clear(self) -> None:
        """No bucket is ranked any more."""
        self._lines.clear()

    def held_by(self, project: str | None, user: str | None) -> "RankedLine":
        """The buckets of the project, or else of the user, in order."""
        whose = user if project is None else project
        position = 1 if project is None else 0
        lines = [
            line for claims, line in self._lines.items() if claims[position] == whose
        ]
        return list(heapq.merge(*lines))
