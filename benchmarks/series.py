"""How soon the curve of a long training is drawn: a million points, of which a page gets
at most two thousand.
"""

import random
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from benchmarks.bench import scaled, scratch, timed
from benchmarks.figures import Figure
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.side_tables import points
from gpuyard.ledger.tables import attempts
from gpuyard.server.series_summaries import SeriesSummaries

GROUP = "series"
_POINTS = 1_000_000
_DRAWN = 2_000
_ROUNDS = 9
_PAGE = 50_000


def measure(scale: float) -> Iterator[Figure]:
    """The first look, and those after it, between which points have come."""
    count = scaled(_POINTS, scale, 50_000)
    rounds = scaled(_ROUNDS, scale)
    with scratch() as folder:
        ledger = Ledger.open(folder / "ledger.db")
        _write(ledger, 0, count)
        summaries = SeriesSummaries(ledger.queries)

        def look() -> float:
            return 1000 * timed(lambda: summaries.drawn("job_1", (), _DRAWN))

        first = look()
        values: list[float] = []
        for number in range(rounds):
            _write(ledger, count + 100 * number, 100)
            values.append(look())
        ledger.close()
    words = f"{_DRAWN:,} of {count:,} points"
    yield Figure(GROUP, f"{words}, at the first look", [first], "ms")
    yield Figure(GROUP, words, values, "ms", 50, absolute=True)


def _write(ledger: Ledger, first: int, count: int) -> None:
    chance = random.Random(first)
    with ledger.engine.begin() as tx:
        if not first:
            tx.execute(sa.insert(attempts).values(id="attempt_1", job_id="job_1"))
        for begin in range(first, first + count, _PAGE):
            end = min(begin + _PAGE, first + count)
            tx.execute(sa.insert(points), [_row(n, chance) for n in range(begin, end)])


def _row(n: int, chance: random.Random) -> dict[str, Any]:
    return {
        "attempt_id": "attempt_1",
        "name": "loss",
        "n": n,
        "job_id": "job_1",
        "step": n,
        "value": chance.random(),
        "at": float(n),
    }
