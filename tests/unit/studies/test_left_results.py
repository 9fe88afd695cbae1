"""What a run leaves on the server is what its report says, and what the server takes."""

from pathlib import Path

import pytest

from gpuyard.domain.studies import NewStudyResult
from gpuyard.studies.collector import ResultCollector
from gpuyard.studies.left_results import body_of
from gpuyard.studies.summary import RunSummary
from tests.support.study_run import ALONE, HYBRID, RUN, TENSOR, write_run


def test_a_run_is_left_as_its_report_ranks_it(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    results = tmp_path / "results"
    ResultCollector(run, results).ingest_run()
    summary = RunSummary.load(results, RUN, price_per_gpu_hour=4.0, currency="EUR")
    left = NewStudyResult.model_validate(body_of(summary, "tiny/Llama\n", 1.0))
    assert (left.model, left.currency) == ("tiny/Llama", "EUR")
    assert (left.objective, left.best) == ("cheapest", summary.ranking.best)
    assert left.reason == summary.ranking.reason
    by_name = {one.strategy_id: one for one in left.strategies}
    ranks = {name: one.rank for name, one in by_name.items() if one.rank}
    order = [name for name, _ in summary.ranking.order]
    assert ranks == {name: place for place, name in enumerate(order, 1)}
    failed = by_name[HYBRID.strategy_id]
    assert (failed.status, failed.not_ranked) == ("FAILED", "it is FAILED")
    assert by_name[TENSOR.strategy_id].rank is None
    (row,) = [
        one for one in summary.strategies if one["strategy_id"] == ALONE.strategy_id
    ]
    alone = by_name[ALONE.strategy_id]
    assert alone.tokens_per_s == pytest.approx(row["tokens_per_s"])
    assert alone.agreement == pytest.approx(row[summary.primary])
