"""Plots: colours, and what is said where there are no data."""

from pathlib import Path

from matplotlib.figure import Figure

from gpuyard.studies.collector import ResultCollector
from gpuyard.studies.plot_style import place_labels, styles
from gpuyard.studies.summary import RunSummary
from gpuyard.studies.tradeoff_plots import knee, pareto_front
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
    names = [f"s{number}" for number in range(208)]
    found = styles(names)
    assert len(set(found.values())) == 208
    assert {name: found[name] for name in names[:3]} == styles(names[:3])


def test_the_front_has_what_nothing_beats_in_both() -> None:
    points = [(3.0, 1.0), (1.0, 5.0), (2.0, 5.0), (2.0, 2.0), (4.0, 1.0)]
    assert pareto_front(points) == [1, 3, 0]
    assert pareto_front([]) == []


def test_the_knee_is_where_latency_begins_to_rise_faster() -> None:
    assert knee([(1, 10), (2, 11), (3, 12), (3.5, 30)]) == 2
    assert knee([(1, 10), (2, 20), (3, 30)]) is None
    assert knee([(1, 10), (2, 20)]) is None
    assert knee([(1, 10), (1, 20), (1, 30)]) is None


def test_labels_do_not_overlap() -> None:
    axes = Figure().subplots()
    axes.set(xlim=(0, 10), ylim=(0, 10))
    crowd = [(5 + number / 50, 5.0, f"strategy {number}") for number in range(40)]
    placed = place_labels(axes, [(1.0, 9.0, "alone"), *crowd])
    boxes = [text.get_window_extent() for text in axes.texts]
    assert 3 <= placed == len(boxes) < 41
    for at, box in enumerate(boxes):
        assert not box.count_overlaps(boxes[at + 1 :])
