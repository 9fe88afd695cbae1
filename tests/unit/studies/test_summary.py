"""The figures of a run, worked out by hand on a few answers, and which strategy is best
by them.
"""

import csv
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.studies.collector import ResultCollector
from gpuyard.studies.correctness import CorrectnessEvaluator
from gpuyard.studies.ranking import Objective, rank
from gpuyard.studies.report import StudyReport
from gpuyard.studies.summary import RunSummary
from tests.support.study_run import (
    ALONE,
    HYBRID,
    PIPELINE,
    RUN,
    TENSOR,
    entry,
    prompts,
    shard_path,
    write_manifest,
    write_prompts,
    write_run,
    write_strategy,
)


def answer(
    strategy_id: str,
    prompt_id: str,
    variant: str,
    latency_ms: float,
    tokens: int,
    said: str,
) -> dict[str, Any]:
    return {
        "prompt_id": prompt_id,
        "variant": variant,
        "strategy_id": strategy_id,
        "status": "ok",
        "rank": 0,
        "batch": 0,
        "cluster_completion": said,
        "cluster_latency_ms": latency_ms,
        "ttft_ms": latency_ms / 10,
        "tokens_generated": tokens,
        "prompt_tokens": 100,
        "token_ids": None,
        "local_completion": "a b c d",
    }


def measured(
    strategy_id: str, rank: int, nodes: int, per_node: int, **figures: Any
) -> dict[str, Any]:
    empty = dict.fromkeys(
        (
            "generate_s",
            "elapsed_s",
            "started_at",
            "ended_at",
            "peak_memory_bytes",
            "max_rss_bytes",
            "compute_s",
            "communication_s",
            "load_s",
        )
    )
    return {
        "strategy_id": strategy_id,
        "rank": rank,
        "host": f"n{rank}",
        "num_nodes": nodes,
        "gpus_per_node": per_node,
        "tp_size": nodes * per_node,
        "pp_size": 1,
        "dp_size": 1,
        "world_size": nodes * per_node,
        "engine": "torch",
        "precision": "fp32",
        "batch_size": 2,
        "variant_s": [],
        **empty,
        **figures,
    }


def collected(strategy_id: str, status: str, rows: int) -> dict[str, Any]:
    return {
        "strategy_id": strategy_id,
        "strategy": "kind",
        "status": status,
        "reasons": [],
        "rows": rows,
        "expected": 4,
        "world_size": 1,
    }


@pytest.fixture
def summary() -> RunSummary:
    """One GPU: 4 answers of 10 tokens in 8 s.

    Four GPUs: the same in 4 s, one of them half wrong.
    """
    results = pd.DataFrame(
        [
            answer("one", "p1", "2k", 1000, 10, "a b c d"),
            answer("one", "p2", "2k", 2000, 10, "a b c d"),
            answer("one", "p1", "4k", 3000, 10, "a b c d"),
            answer("one", "p2", "4k", 4000, 10, "a b c d"),
            answer("four", "p1", "2k", 500, 10, "a b c d"),
            answer("four", "p2", "2k", 1000, 10, "a b x y"),
            answer("four", "p1", "4k", 1500, 10, "a b c d"),
            answer("four", "p2", "4k", 2000, 10, "a b c d"),
        ]
    )
    gib = 2**30
    metrics = pd.DataFrame(
        [
            measured(
                "one",
                0,
                1,
                1,
                generate_s=8.0,
                elapsed_s=36.0,
                peak_memory_bytes=4 * gib,
                compute_s=8.0,
                communication_s=0.0,
                variant_s=[("2k", 3.0), ("4k", 5.0)],
                max_rss_bytes=gib,
                load_s=1.0,
            ),
            measured(
                "four",
                0,
                2,
                2,
                generate_s=3.5,
                started_at=100.0,
                ended_at=109.0,
                peak_memory_bytes=gib,
                compute_s=3.0,
                communication_s=1.0,
            ),
            measured(
                "four",
                1,
                2,
                2,
                generate_s=4.0,
                started_at=101.0,
                ended_at=110.0,
                peak_memory_bytes=2 * gib,
                compute_s=2.0,
                communication_s=2.0,
            ),
        ]
    )
    document = {
        "run_id": "run_x",
        "study": "by hand",
        "collected": [
            collected("four", "COMPLETED", 4),
            collected("one", "COMPLETED", 4),
        ],
    }
    return RunSummary(document, results, metrics, price_per_gpu_hour=2.0)


def row(
    summary: RunSummary, strategy_id: str, variant: str = "all"
) -> Mapping[str, Any]:
    (found,) = (
        one
        for one in summary.rows
        if (one["strategy_id"], one["variant"]) == (strategy_id, variant)
    )
    return found


def test_nobody_generates_faster_than_its_answers(summary: RunSummary) -> None:
    metrics = summary.metrics.assign(generate_s=[0.01, 3.5, 4.0])
    found = RunSummary(summary.document, summary.results, metrics)
    # 2 s for the slowest answer of one variant, and 4 s for that of the other.
    assert row(found, "one")["tokens_per_s"] == pytest.approx(40 / 6)
    assert row(found, "four")["tokens_per_s"] == pytest.approx(10)
    (warning,) = found.warnings
    assert warning.startswith(
        "one states that it generated for 0.01 s, but its answers"
    )


def test_other_machines_programs_and_models_are_told(summary: RunSummary) -> None:
    metrics = summary.metrics.assign(
        gpu_name=["T4", "A100", "A100"],
        engine_version="1",
        # A server does not tell its version of PyTorch.
        torch_version=["", "2.9", "2.9"],
    )
    entries = [
        {"strategy_id": "one", "model_fingerprint": "ab"},
        {"strategy_id": "four", "model_fingerprint": "cd"},
    ]
    document = {**summary.document, "entries": entries}
    gpus, model = RunSummary(document, summary.results, metrics).warnings
    assert gpus == (
        "Strategies had different GPUs: one had T4; four had A100. So their speeds"
        " differ for that, too."
    )
    assert model.startswith("The model's files changed during the run: one had other")


def test_a_baseline_that_made_other_tokens_judges_nobody(summary: RunSummary) -> None:
    other = summary.results.assign(
        local_completion="x y z", local_api="completions", local_prompt_tokens=100.0
    )
    judged = RunSummary(summary.document, other, summary.metrics)
    assert row(judged, "one")["answers_are"] == "wrong"
    other.loc[0, "local_prompt_tokens"] = 101.0
    found = RunSummary(summary.document, other, summary.metrics)
    assert row(found, "one")["answers_are"] == "reference"
    (warning,) = [one for one in found.warnings if "other tokens" in one]
    assert "of p1 of 2k 101, and the study's tokenizer 100" in warning


def test_pace(summary: RunSummary) -> None:
    one = row(summary, "one")
    four = row(summary, "four")
    assert (one["tokens_per_s"], one["prompts_per_s"]) == (40 / 8, 4 / 8)
    # Of two ranks the slower counts.
    assert (four["tokens_per_s"], four["prompts_per_s"]) == (40 / 4, 4 / 4)
    assert row(summary, "one", "2k")["tokens_per_s"] == pytest.approx(20 / 3)
    assert row(summary, "one", "4k")["tokens_per_s"] == 20 / 5
    # No rank says how long each variant took: the batch's last answer does.
    assert row(summary, "four", "2k")["tokens_per_s"] == 20 / 1


def test_percentiles_are_interpolated(summary: RunSummary) -> None:
    one = row(summary, "one")
    # Of 1, 2, 3 and 4 s: p90 lies at 2.7 of 3 steps, p99 at 2.97.
    assert [one[f"latency_ms_p{share}"] for share in (50, 90, 99)] == pytest.approx(
        [2500, 3700, 3970]
    )
    assert (one["latency_ms_mean"], one["ttft_ms_p50"]) == (2500, 250)


def test_what_a_strategy_took(summary: RunSummary) -> None:
    one = row(summary, "one")
    four = row(summary, "four")
    assert (one["wall_s"], one["gpus"], one["gpu_hours"], one["cost"]) == (
        36,
        1,
        0.01,
        0.02,
    )
    # Slurm says nothing: from the first start to the last end, 10 s on 2 × 2 GPUs.
    assert (four["wall_s"], four["gpus"], four["gpu_hours"]) == (
        10,
        4,
        pytest.approx(40 / 3600),
    )
    assert (one["peak_memory_gib"], four["peak_memory_gib"], one["max_rss_gib"]) == (
        4,
        2,
        1,
    )
    assert (one["communication_share"], four["communication_share"]) == (0, 3 / 8)
    # A GPU at 5 tokens/s takes 200,000 s for a million tokens; four at 10 take four
    # times 100,000.
    assert one["gpu_hours_per_million"] == pytest.approx(200_000 / 3600)
    assert four["gpu_hours_per_million"] == pytest.approx(400_000 / 3600)


def test_scaling_is_beside_the_smallest_layout(summary: RunSummary) -> None:
    one = row(summary, "one")
    four = row(summary, "four")
    assert (one["speed_up"], one["efficiency"]) == (1, 1)
    assert (four["speed_up"], four["efficiency"]) == (2, 0.5)


def test_correctness_and_the_peer(summary: RunSummary) -> None:
    one = row(summary, "one")
    four = row(summary, "four")
    assert (one["exact_match"], four["exact_match"], four["token_agreement"]) == (
        1,
        0.75,
        (1 + 0.5 + 1 + 1) / 4,
    )
    # The smallest is the peer, though it came last.
    assert (four["peer_exact"], four["peer_diverged"]) == (0.75, 1)
    assert row(summary, "four", "2k")["exact_match"] == 0.5
    assert summary.primary == "token_agreement"


@pytest.mark.parametrize(
    ("objective", "best", "reason"),
    [
        (
            "cheapest",
            "one",
            "one has 55.6 GPU-hours per million tokens, 50% less than four.",
        ),
        (
            "fastest",
            "four",
            "four has a median latency of 1,250 ms, 50% less than one.",
        ),
        ("throughput", "four", "four has 10.0 tokens/s, 100% more than one."),
        # (1/2 · 1 · 1)^⅓ = 0.794 against (1 · 1/2 · 1/2)^⅓ = 0.630.
        (
            "balanced",
            "four",
            (
                "four has 79% of the best in cost, latency and throughput together, 26%"
                " more than one."
            ),
        ),
    ],
)
def test_objectives(
    summary: RunSummary, objective: str, best: str, reason: str
) -> None:
    ranking = rank(summary.strategies, Objective.of(objective))
    assert (ranking.best, ranking.reason) == (best, reason)


def test_cheapest_under_a_limit(summary: RunSummary) -> None:
    ranking = rank(summary.strategies, Objective.CHEAPEST, max_p90_ms=3000)
    assert ranking.best == "four"
    assert ranking.left_out == (
        ("one", "its p90 latency of 3,700 ms is over 3,000 ms"),
    )
    nobody = rank(summary.strategies, Objective.CHEAPEST, max_p90_ms=1)
    assert (nobody.best, nobody.reason) == (
        None,
        "No strategy can be ranked under a p90 latency of 1 ms.",
    )


def test_what_is_not_whole_is_ranked_only_when_nothing_is(summary: RunSummary) -> None:
    one, four = (dict(row(summary, name)) for name in ("one", "four"))
    assert rank([one | {"status": "PARTIAL"}, four], Objective.CHEAPEST).best == "four"
    assert (
        rank(
            [one | {"status": "PARTIAL"}, four | {"status": "FAILED"}],
            Objective.CHEAPEST,
        ).best
        == "one"
    )
    assert (
        rank([one | {"tokens_per_s": None}, four], Objective.CHEAPEST).left_out[0][1]
        == "it has no tokens_per_s"
    )
    assert rank([], Objective.BALANCED).best is None


def test_an_unknown_objective() -> None:
    with pytest.raises(
        InvalidInputError, match="one of cheapest, fastest, throughput, balanced"
    ):
        Objective.of("best")


def test_a_run_from_its_folder(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    collector = ResultCollector(run)
    collector.ingest_run()
    evaluator = CorrectnessEvaluator(
        baseline_model="Llama-3-70B", study_model="Llama-3-8B"
    )
    summary = RunSummary.load(
        collector.results, run.name, evaluator=evaluator, objective="throughput"
    )
    assert [one["strategy_id"] for one in summary.strategies] == [
        ALONE.strategy_id,
        TENSOR.strategy_id,
        PIPELINE.strategy_id,
        HYBRID.strategy_id,
    ]
    pipeline = row(summary, PIPELINE.strategy_id)
    hybrid = row(summary, HYBRID.strategy_id)
    assert (
        pipeline["exact_match"],
        pipeline["diverged"],
        pipeline["peer_diverged"],
    ) == (0.8, 8, 8)
    assert (hybrid["status"], hybrid["prompts"], hybrid["tokens_per_s"]) == (
        "FAILED",
        0,
        None,
    )
    assert hybrid["gpu_hours"] == 90 * 4 / 3600
    assert summary.ranking.best == PIPELINE.strategy_id
    text = summary.to_markdown(collector.results)
    assert (collector.results / f"summary_{run.name}.md").read_text() == text
    assert "CUDA out of memory" in text and "compare models" in text
    path = summary.to_csv(collector.results)
    assert path.name == f"summary_{run.name}.csv"
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12 and rows[0]["tokens_per_s"] == str(
        row(summary, ALONE.strategy_id)["tokens_per_s"]
    )


def test_the_fastest_strategy_is_not_best_if_its_answers_are_wrong(
    tmp_path: Path,
) -> None:
    run = tmp_path / "runs" / RUN
    asked = prompts(10)
    wrong = replace(PIPELINE, diverges_every=1)
    write_prompts(run, asked)
    for layout in (ALONE, wrong):
        write_strategy(run, layout, asked)
    write_manifest(run, [entry(ALONE), entry(wrong)])
    collector = ResultCollector(run)
    collector.ingest_run()
    found = RunSummary.load(collector.results, run.name, objective="throughput")
    slow = row(found, ALONE.strategy_id)
    fast = row(found, wrong.strategy_id)
    assert fast["tokens_per_s"] > slow["tokens_per_s"]
    assert found.ranking.best == ALONE.strategy_id
    assert (slow["answers_are"], fast["answers_are"]) == ("reference", "wrong")
    ((name, why),) = found.ranking.wrong
    assert name == wrong.strategy_id
    assert why.startswith(f"20 of 20 answers differ from {ALONE.strategy_id}")
    assert f"## Answers not right\n\n- {name}: {why}" in found.to_markdown()


def test_results_that_cannot_be_are_not_best_where_nothing_is_whole(
    tmp_path: Path,
) -> None:
    run = tmp_path / "runs" / RUN
    asked = prompts(10)
    write_prompts(run, asked)
    for layout in (ALONE, TENSOR):
        write_strategy(run, layout, asked)
        shard = shard_path(run, layout, 0)
        rows = [json.loads(line) for line in shard.read_text().splitlines()]
        if layout is TENSOR:
            rows[1]["tokens_generated"] = 1_000_000
        shard.write_text("".join(json.dumps(one) + "\n" for one in rows[1:]))
    write_manifest(run, [entry(ALONE), entry(TENSOR)])
    collector = ResultCollector(run)
    collector.ingest_run()
    found = RunSummary.load(collector.results, run.name, objective="throughput")
    assert {one["status"] for one in found.strategies} == {"PARTIAL"}
    assert found.ranking.best == ALONE.strategy_id
    ((name, why),) = found.ranking.wrong
    assert name == TENSOR.strategy_id
    assert why.startswith("its results cannot be: 1 results state more tokens than")


def test_a_run_that_was_not_collected(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="is not collected"):
        RunSummary.load(tmp_path, "run_x")


def test_markdown_holds_no_markup_from_files(summary: RunSummary) -> None:
    summary.collected[0]["reasons"] = ["<b>|\n# no"]
    summary.rows[0]["strategy_id"] = "a|b"
    text = summary.to_markdown()
    assert "<b>" not in text and "\n# no" not in text and "| a\\|b |" in text


def test_names_of_ones_own_and_what_a_million_tokens_cost(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    named = entry(PIPELINE, strategy="over the hall", overrides={"batch_size": 4})
    write_manifest(run, [entry(ALONE), named])
    collector = ResultCollector(run)
    collector.ingest_run()
    found = RunSummary.load(
        collector.results, run.name, objective="throughput", price_per_gpu_hour=2.5
    )
    label = "over the hall, batch_size 4"
    said = found.to_markdown()
    assert f"| {label} | all |" in said and f"{label} has" in said
    assert PIPELINE.strategy_id not in said
    pipeline = row(found, PIPELINE.strategy_id)
    per_million = pipeline["gpu_hours_per_million"] * 2.5
    assert pipeline["cost_per_million"] == pytest.approx(per_million)
    assert f"{per_million:,.2f}" in said and "cost, USD per M tokens" in said
    page = StudyReport(found, run).html()
    assert f'<th scope="row">{label}</th>' in page
