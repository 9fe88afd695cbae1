"""What a run leaves on the server is what its report says, and what the server takes."""

from dataclasses import replace
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


def test_a_wrong_strategy_says_why_and_an_odd_figure_hides_no_other(
    tmp_path: Path,
) -> None:
    results = tmp_path / "results"
    ResultCollector(write_run(tmp_path), results).ingest_run()
    summary = RunSummary.load(results, RUN)
    wrong = ((ALONE.strategy_id, "its answers differ"),)
    summary.ranking = replace(summary.ranking, order=(), wrong=wrong)
    for row in summary.rows:
        row["latency_ms_p50"] = -1.0
    left = NewStudyResult.model_validate(body_of(summary, "tiny/Llama", 1.0))
    (alone,) = [one for one in left.strategies if one.strategy_id == ALONE.strategy_id]
    assert (alone.rank, alone.not_ranked) == (None, "its answers differ")
    assert alone.latency_ms_p50 is None
