"""What repeats tell of a strategy: how much of its answers and of its speed is noise."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpuyard.studies.collector import ResultCollector
from gpuyard.studies.repeats import mean_interval, read_repeats
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
    The passes take 2, 1 and 1 seconds.
    """
    run = study / "runs" / RUN
    asked = prompts(10)
    write_prompts(run, asked)
    write_strategy(run, ALONE, asked)
    folder = run / ALONE.strategy_id / "repeats"
    folder.mkdir()
    lines: list[str] = []
    for repeat, every in ((1, 0), (2, 5)):
        layout = replace(ALONE, diverges_every=every)
        rows = [row(layout, prompt) | {"repeat": repeat} for prompt in asked]
        lines += [json.dumps(one) for one in rows]
    (folder / "shard_0.jsonl").write_text("\n".join([*lines, "{damaged"]))
    path = metrics_path(run, ALONE, 0)
    passes = [{"seconds": seconds, "tokens": 100} for seconds in (2.0, 1.0, 1.0)]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"passes": passes}))
    write_manifest(run, [entry(ALONE)])
    return run


def test_the_noise_of_answers_and_of_speed(tmp_path: Path) -> None:
    run = write_repeated(tmp_path)
    figures = read_repeats(run / ALONE.strategy_id, "bf16")
    assert figures is not None
    assert (figures.repeats, figures.same, figures.agreeing) == (3, 0.9, 0.9)
    assert figures.tokens_per_s == (50, 100, 100)


def test_the_report_has_the_mean_of_all_passes_with_its_interval(
    tmp_path: Path,
) -> None:
    run = write_repeated(tmp_path)
    collector = ResultCollector(run)
    collector.ingest_run()
    summary = RunSummary.load(collector.results, run.name)
    (found,) = summary.strategies
    assert found["tokens_per_s"] == pytest.approx(250 / 3)
    reach = 4.303 * 28.8675 / 3**0.5
    assert found["tokens_per_s_high"] == pytest.approx(250 / 3 + reach, abs=0.01)
    said = summary.to_markdown()
    assert "| 83.3 (11.6–155.1) | 90 % |" in said


def test_one_pass_has_no_noise(tmp_path: Path) -> None:
    assert read_repeats(tmp_path, "bf16") is None
    assert mean_interval([3.0]) is None
    low, high = mean_interval([1.0, 2.0] * 20) or (0, 0)
    assert 1.3 < low < 1.5 < high < 1.7
