"""Summaries of series follow what the ledger has."""

from typing import Any

import pytest
import sqlalchemy as sa

from gpuyard.insight.series import SeriesSummary
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.side_tables import points
from gpuyard.ledger.tables import attempts
from gpuyard.server.series_summaries import SeriesSummaries


def add(ledger: Ledger, attempt: int, first: int, values: list[float]) -> None:
    rows: list[dict[str, Any]] = [
        {
            "attempt_id": f"attempt_{attempt}",
            "name": "loss",
            "n": first + n,
            "job_id": "job_1",
            "step": first + n,
            "value": value,
            "at": 1.0,
        }
        for n, value in enumerate(values)
    ]
    with ledger.engine.begin() as tx:
        tx.execute(sa.insert(points), rows)


def drawn(summaries: SeriesSummaries, limit: int) -> tuple[int, list[float]]:
    (count, found) = summaries.drawn("job_1", (), limit)["loss"]
    return count, [point.value for point in found]


def test_a_summary_follows_its_series(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SeriesSummary, "MOST_WHOLE", 200)
    with ledger.engine.begin() as tx:
        rows = [{"id": f"attempt_{n}", "job_id": "job_1"} for n in (1, 2)]
        tx.execute(sa.insert(attempts), rows)
    assert ledger.queries.series_names("job_1") == []
    summaries = SeriesSummaries(ledger.queries)
    add(ledger, 1, 0, [1.0] * 100)
    assert ledger.queries.series_names("job_1") == ["loss"]
    assert drawn(summaries, 4)[0] == 100

    add(ledger, 2, 0, [1.0] * 99 + [9.0])
    add(ledger, 2, 100, [1.0] * 100)
    (count, values) = drawn(summaries, 4)
    assert (count, values) == (300, [1.0, 1.0, 9.0, 1.0])
    # So many points need the whole series.
    (count, values) = drawn(summaries, 250)
    assert count == 300
    assert len(values) > 100  # a run of equal points has one

    # What comes late for an attempt before stands in its place.
    add(ledger, 1, 100, [-5.0])
    (count, values) = drawn(summaries, 4)
    assert count == 301
    assert values == [1.0, -5.0, 9.0, 1.0]

    # What was removed for its age is not shown from memory.
    with ledger.engine.begin() as tx:
        tx.execute(sa.delete(points).where(points.c.attempt_id == "attempt_1"))
    assert drawn(summaries, 4)[0] == 200
