"""Plots: colours, and what is said where there are no data."""

from pathlib import Path

from gpuyard.studies.collector import ResultCollector
from gpuyard.studies.plots import styles
from gpuyard.studies.summary import RunSummary
from tests.support.study_run import (
    HYBRID,
    PIPELINE,
    RUN,
    entry,
    prompts,
    write_manifest,
    write_prompts,
)


def test_no_data_is_said(tmp_path: Path) -> None:
    run = tmp_path / "runs" / RUN
    write_prompts(run, prompts(2))
    write_manifest(run, [entry(HYBRID, "FAILED"), entry(PIPELINE, "SKIPPED")])
    collector = ResultCollector(run)
    collector.ingest_run()
    summary = RunSummary.load(collector.results, run.name)
    assert {plot.alt for plot in summary.build_plots()} == {
        "There are no data for this plot."
    }


def test_no_two_strategies_look_alike() -> None:
    names = [f"s{number}" for number in range(24)]
    found = styles(names)
    assert len(set(found.values())) == 24
    assert {name: found[name] for name in names[:3]} == styles(names[:3])
