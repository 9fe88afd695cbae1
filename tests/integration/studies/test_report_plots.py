"""Plots of a whole run, of one strategy and of twelve."""

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from gpuyard.studies import plot_style
from gpuyard.studies.collector import ResultCollector
from gpuyard.studies.plot_style import plotted
from gpuyard.studies.report import StudyReport
from gpuyard.studies.summary import RunSummary
from gpuyard.studies.tradeoff_plots import draw_knee
from tests.support.study_run import (
    ALONE,
    RUN,
    Layout,
    entry,
    prompts,
    write_manifest,
    write_prompts,
    write_run,
    write_strategy,
)

NAMES = [
    "latency-correctness",
    "throughput-length",
    "latency-distribution",
    "memory",
    "time",
    "scaling",
    "pareto",
    "knee",
]


def summary_of(run: Path) -> RunSummary:
    collector = ResultCollector(run)
    collector.ingest_run()
    return RunSummary.load(collector.results, run.name)


def test_every_plot_is_told_and_stands_alone(tmp_path: Path) -> None:
    plots = summary_of(write_run(tmp_path)).build_plots()
    assert [plot.name for plot in plots] == NAMES
    assert "llama8b_tp1_pp4: 1.82 times" in plots[5].alt
    page = "".join(plot.svg for plot in plots)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(|href=")#([^")]+)', page)) <= set(ids)
    # What is no name of XML's would be fetched.
    assert not re.findall(
        r'(?:href|src)="(?!#)|url\((?!#)|<style[^>]*>[^<]*@import', page
    )
    for plot in plots:
        root = ET.fromstring(plot.svg)
        assert root.attrib["role"] == "img" and root.attrib["viewBox"]
        assert [child.text for child in root][:2] == [plot.title, plot.alt]
        # Ink and lines are the page's, so that they can be seen on dark ground too.
        assert "currentColor" in plot.svg and "#12345" not in plot.svg


def test_a_sweep_of_batch_sizes_has_a_curve(tmp_path: Path) -> None:
    run = tmp_path / "runs" / RUN
    asked = prompts(3)
    write_prompts(run, asked)
    layouts: list[Layout] = []
    for batch_size, pace_ms in ((1, 40.0), (2, 30.0), (4, 29.0)):
        layout = replace(ALONE, strategy_id=f"b{batch_size}", pace_ms=pace_ms)
        write_strategy(run, layout, asked)
        path = run / layout.strategy_id / "exp_config.json"
        config = json.loads(path.read_text()) | {"batch_size": batch_size}
        path.write_text(json.dumps(config))
        layouts.append(layout)
    write_manifest(run, [entry(layout) for layout in layouts])
    axes = Figure().subplots()
    told = draw_knee(summary_of(run), axes)
    assert "tp 1, pp 1, dp 1: no knee" in told
    assert {text.get_text() for text in axes.texts} <= {"1", "2", "4"}
    assert len(axes.lines) == 1


def test_plots_show_the_best_of_more_strategies_than_one_can_tell_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plot_style, "MOST", 2)
    run = tmp_path / "runs" / RUN
    asked = prompts(2)
    write_prompts(run, asked)
    layouts = [
        replace(ALONE, strategy_id=f"s{pace_ms}", pace_ms=float(pace_ms))
        for pace_ms in (30, 10, 40, 20)
    ]
    for layout in layouts:
        write_strategy(run, layout, asked)
    write_manifest(run, [entry(layout) for layout in layouts])
    summary = summary_of(run)
    shown = [row["strategy_id"] for row in plotted(summary)]
    assert shown == ["s10", "s20"]
    page = StudyReport(summary, run).html()
    assert "The plots show the 2 best strategies; the table has all." in page
    assert page.count('<th scope="row">s40</th>') > 0
    drawings = {plot.name: plot.alt for plot in summary.build_plots()}
    assert "s10" in drawings["memory"] and "s40" not in drawings["memory"]


@pytest.mark.parametrize("count", [1, 12])
def test_one_strategy_and_twelve(tmp_path: Path, count: int) -> None:
    run = tmp_path / "runs" / RUN
    asked = prompts(3)
    write_prompts(run, asked)
    layouts = [
        replace(ALONE, strategy_id=f"s{number}", dp=number + 1)
        for number in range(count)
    ]
    for layout in layouts:
        write_strategy(run, layout, asked)
    write_manifest(run, [entry(layout) for layout in layouts])
    for plot in summary_of(run).build_plots():
        if plot.name == "knee":
            continue
        assert all(layout.strategy_id in plot.alt for layout in layouts)
