"""How many jobs end: counted from the journal, each event once. A question reads only
what has come since the question before; the first one reads the events of a day.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Collection

from gpuyard.domain.throughput import OUTCOMES, Throughput, ThroughputStep
from gpuyard.ledger.queries import Queries

_MINUTE_S = 60
_KEPT_MINUTES = 25 * 60
# So many events are looked at in one transaction.
_PAGE = 50_000
# An end: the project of its job (None: it has none), and the outcome.
_End = tuple[str | None, str]


class JobThroughput:
    """Its calls block on the ledger, and threads may share it."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._lock = threading.Lock()
        self._seen: int | None = None
        self._minutes: defaultdict[int, Counter[_End]] = defaultdict(Counter[_End])

    def read(
        self, by: ThroughputStep, hidden: Collection[str], now: float
    ) -> Throughput:
        """The counts until `now` (UTC seconds), without jobs of `hidden` projects."""
        this_minute = int(now // _MINUTE_S)
        last = this_minute // by.minutes
        first = last - by.shown + 1
        ended = {outcome: [0] * by.shown for outcome in OUTCOMES.values()}
        with self._lock:
            self._read_on(this_minute)
            for minute, ends in self._minutes.items():
                step = minute // by.minutes - first
                if not 0 <= step < by.shown:
                    continue
                for (project, outcome), number in ends.items():
                    if project not in hidden:
                        ended[outcome][step] += number
        step_s = by.minutes * _MINUTE_S
        return Throughput(by=by, step_s=step_s, begins_at=first * step_s, ended=ended)

    def _read_on(self, this_minute: int) -> None:
        oldest = this_minute - _KEPT_MINUTES
        newest = self._queries.last_seq()
        if self._seen is None:
            self._seen = self._queries.seq_before(oldest * _MINUTE_S)
        while self._seen < newest:
            until = min(self._seen + _PAGE, newest)
            for at, kind, project in self._queries.job_ends(
                OUTCOMES, self._seen, until
            ):
                self._minutes[int(at // _MINUTE_S)][(project, OUTCOMES[kind])] += 1
            self._seen = until
        for minute in [minute for minute in self._minutes if minute < oldest]:
            del self._minutes[minute]
