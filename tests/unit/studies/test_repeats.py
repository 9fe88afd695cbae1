"""What repeats tell of a strategy: how much of its answers and of its speed is noise."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpuyard.studies.collector import ResultCollector
from gpuyard.studies.repeats import (
    RepeatFindings,
    RepeatsAsked,
    mean_interval,
    read_repeats,
)
from gpuyard.studies.runtime.outputs import RankReport
from gpuyard.studies.summary import RunSummary
from tests.support.study_run import (
    ALONE,
    RUN,
    entry,
    metrics_path,
    prompts,
    row,
    write_manifest,
    write_prompts,
    write_strategy,
)


def write_repeated(study: Path) -> Path:
    """A run of one strategy that answers thrice; the third time a fifth is different.
    The second and third pass take half as long as the first. The engine has started a
    worker, which has no passes of its own.
    """
    run = study / "runs" / RUN
    asked = prompts(10)
    write_prompts(run, asked)
    write_strategy(run, ALONE, asked)
    folder = run / ALONE.strategy_id / "repeats"
    folder.mkdir()
    lines: list[str] = []
    for repeat, every in ((1, 0), (2, 5)):
        layout = replace(ALONE, diverges_every=every, pace_ms=ALONE.pace_ms / 2)
        rows = [row(layout, prompt, 0, at) for at, prompt in enumerate(asked)]
        lines += [json.dumps(one | {"repeat": repeat}) for one in rows]
    (folder / "shard_0.jsonl").write_text("\n".join([*lines, "{damaged"]))
    path = metrics_path(run, ALONE, 0)
    report = json.loads(path.read_text())
    passes = [
        {"seconds": report["generate_s"] * share, "tokens": report["tokens_generated"]}
        for share in (1.0, 0.5, 0.5)
    ]
    path.write_text(json.dumps(report | {"passes": passes}))
    worker = metrics_path(run, ALONE, 1)
    worker.write_text(json.dumps(report | {"rank": 1, "passes": []}))
    write_manifest(run, [entry(ALONE)])
    return run


def first_pace(run: Path) -> float:
    """Tokens per second of the first pass."""
    report = json.loads(metrics_path(run, ALONE, 0).read_text())
    return report["tokens_generated"] / report["generate_s"]


def test_the_noise_of_answers_and_of_speed(tmp_path: Path) -> None:
    run = write_repeated(tmp_path)
    figures = read_repeats(run / ALONE.strategy_id, "bf16").figures
    assert figures is not None
    assert (figures.repeats, figures.same, figures.agreeing) == (3, 0.9, 0.9)
    pace = first_pace(run)
    assert figures.tokens_per_s == pytest.approx((pace, 2 * pace, 2 * pace))


def test_the_report_has_the_mean_of_all_passes_with_its_interval(
    tmp_path: Path,
) -> None:
    run = write_repeated(tmp_path)
    collector = ResultCollector(run)
    collector.ingest_run()
    summary = RunSummary.load(collector.results, run.name)
    (found,) = summary.strategies
    mean = first_pace(run) * 5 / 3
    assert found["tokens_per_s"] == pytest.approx(mean)
    # Of p, 2 p and 2 p the standard deviation is p / sqrt(3).
    reach = 4.303 * first_pace(run) / 3
    assert found["tokens_per_s_high"] == pytest.approx(mean + reach)
    said = summary.to_markdown()
    assert f"| {mean:.1f} ({mean - reach:.1f}–{mean + reach:.1f}) | 90 % |" in said


@pytest.mark.parametrize("number", [0, 2])
def test_passes_that_are_faster_than_their_answers_do_not_count(
    tmp_path: Path, number: int
) -> None:
    run = write_repeated(tmp_path)
    pace = first_pace(run)
    path = metrics_path(run, ALONE, 0)
    report = json.loads(path.read_text())
    report["passes"][number] = {"seconds": 0.001, "tokens": 1e6}
    path.write_text(json.dumps(report))
    collector = ResultCollector(run)
    collector.ingest_run()
    (found,) = RunSummary.load(collector.results, run.name).strategies
    assert found["tokens_per_s"] == pytest.approx(pace)
    assert found["repeats_same"] == 0.9


@pytest.mark.parametrize(
    "values",
    [
        {"tokens_generated": 10**6, "token_ids": None},
        {"tokens_generated": 21},
        {"tokens_generated": None},
        {"latency_ms": "soon"},
        {"latency_ms": -1.0},
    ],
)
def test_answers_of_a_pass_that_cannot_be_tell_no_speed(
    tmp_path: Path, values: dict[str, object]
) -> None:
    run = write_repeated(tmp_path)
    path = run / ALONE.strategy_id / "repeats" / "shard_0.jsonl"
    first, *others = path.read_text().split("\n")
    changed = json.dumps(json.loads(first) | values)
    path.write_text("\n".join([changed, *others]))
    figures = read_repeats(run / ALONE.strategy_id, "bf16", most_tokens=20).figures
    assert figures is not None and figures.tokens_per_s == ()


def test_a_worker_of_an_engine_has_no_passes() -> None:
    driver = RankReport(0, "n", passes=[{"seconds": 1.0, "tokens": 9}], energy_j=4.0)
    worker = driver.of_worker(3)
    assert (worker.rank, worker.passes, worker.energy_j) == (3, [], 0.0)
    assert driver.passes


def test_one_pass_has_no_noise(tmp_path: Path) -> None:
    assert read_repeats(tmp_path, "bf16") == RepeatFindings()
    assert mean_interval([3.0]) is None
    low, high = mean_interval([1.0, 2.0] * 20) or (0, 0)
    assert 1.3 < low < 1.5 < high < 1.7


def test_far_more_answers_than_were_asked_for_are_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "repeats"
    folder.mkdir()
    row = {"prompt_id": "p", "variant": "2k", "repeat": 1, "completion": ""}
    (folder / "shard_0.jsonl").write_text(f"{json.dumps(row)}\n" * 1009)
    found = read_repeats(tmp_path, "bf16", 5, RepeatsAsked(results=2, times=2))
    assert found.faults == (
        "repeats has more than 1,008 lines: the others are not read",
    )
