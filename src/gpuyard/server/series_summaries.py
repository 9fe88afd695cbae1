"""Summaries of long metric series, so that a look at a running job reads only what has
come since the look before.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

from gpuyard.insight.series import SeriesSummary, downsample
from gpuyard.ledger.queries import Queries
from gpuyard.ledger.queries.metrics import StoredPoint

# So many points of all series together are held in memory: some 30 MB.
_MOST_POINTS = 200_000
_Key = tuple[str, str]
Drawn = tuple[int, list[StoredPoint]]
"""How many points a series has, and some of them."""


@dataclass(slots=True)
class _Known:
    """A series as far as it was read: `read` has the last `n` of each attempt. Whoever
    holds the lock reads on.
    """

    summary: SeriesSummary[StoredPoint] = field(
        default_factory=SeriesSummary[StoredPoint]
    )
    read: dict[str, int] = field(default_factory=dict[str, int])
    first: tuple[str, int] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def forget(self) -> None:
        """Begin anew."""
        self.summary = SeriesSummary[StoredPoint]()
        self.read = {}
        self.first = None


class SeriesSummaries:
    """The series that were looked at last. Its calls block on the ledger, and threads
    may share it.
    """

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._known: OrderedDict[_Key, _Known] = OrderedDict()
        self._lock = threading.Lock()

    def drawn(
        self, job_id: str, names: Collection[str], limit: int
    ) -> dict[str, Drawn]:
        """How many points each of these series of a job has, and at most `limit` of
        them, its extremes kept; all series if there are no names.
        """
        attempts = self._queries.attempts_of([job_id]).get(job_id, [])
        ids = [row["id"] for row in attempts]
        wanted = names or self._queries.series_names(job_id)
        found = {name: self._drawn(job_id, ids, name, limit) for name in wanted}
        return {name: found[name] for name in sorted(found) if found[name][0]}

    def _drawn(self, job_id: str, ids: list[str], name: str, limit: int) -> Drawn:
        with self._lock:
            known = self._known.setdefault((job_id, name), _Known())
            self._known.move_to_end((job_id, name))
        with known.lock:
            self._bring_up_to_date(known, name, ids)
            count = known.summary.count
            drawn = known.summary.drawn(limit)
        with self._lock:
            self._make_room()
        return (count, drawn) if drawn is not None else self._exact(job_id, name, limit)

    def _exact(self, job_id: str, name: str, limit: int) -> Drawn:
        """The same from the whole series."""
        rows = self._queries.series(job_id, [name]).get(name, [])
        whole = [StoredPoint(n, **row) for n, row in enumerate(rows)]
        return len(whole), downsample(whole, limit)

    def _bring_up_to_date(
        self, known: _Known, name: str, attempt_ids: list[str]
    ) -> None:
        if self._is_gone(known, name):
            known.forget()
        if not self._read_on(known, name, attempt_ids):
            known.forget()
            self._read_on(known, name, attempt_ids)

    def _is_gone(self, known: _Known, name: str) -> bool:
        """Whether the points that were read have been removed since, for their age."""
        if known.first is None:
            return False
        (attempt_id, n) = known.first
        return not self._queries.has_point(attempt_id, name, n)

    def _read_on(self, known: _Known, name: str, attempt_ids: list[str]) -> bool:
        """Read what has come since; False if some of it belongs before what was read
        already.
        """
        last = max(known.read, default="")
        for attempt_id in attempt_ids:
            after = known.read.get(attempt_id, -1)
            points = self._queries.points_after(attempt_id, name, after)
            if not points:
                continue
            if attempt_id < last:
                return False
            known.summary.extend(points)
            known.read[attempt_id] = points[-1].n
            if known.first is None:
                known.first = (attempt_id, points[0].n)
        return True

    def _make_room(self) -> None:
        """Forget what was looked at longest ago."""
        held = sum(known.summary.size for known in self._known.values())
        while held > _MOST_POINTS and len(self._known) > 1:
            (_, forgotten) = self._known.popitem(last=False)
            held -= forgotten.summary.size
