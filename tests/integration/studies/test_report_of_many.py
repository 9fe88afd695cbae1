"""The report of 200 strategies with names of all kinds: of one, of all, of none that
finished. No label covers another one or is cut off, and the page stays small.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from gpuyard.domain.studies import NewStudyResult
from gpuyard.studies.collector import ResultCollector
from gpuyard.studies.left_results import body_of
from gpuyard.studies.plot_style import LONGEST_NAME, plot_names
from gpuyard.studies.report import StudyReport
from gpuyard.studies.summary import RunSummary
from tests.support.page import Page
from tests.support.study_run import (
    ALONE,
    RUN,
    Layout,
    entry,
    prompts,
    write_manifest,
    write_prompts,
    write_strategy,
)

MANY = 200
NAMES = (
    "<b>bold</b> & </td><script>alert(1)</script>",
    "\u062a\u0642\u0633\u064a\u0645 \u0639\u0628\u0631 \u0627\u0644\u0639\u0642\u062f",
    "$\\frac{a}{b}$ costs $5",
    "_hidden",
    "\u5f20\u91cf\u5e76\u884c" * 20,
    "a strategy with a very long name that says all of its layout and of its engine, too",
    "![x](http://example.org/x.png)",
    "plain",
)
SIZES = (1, 2, 3, 4, 6, 8, 12, 16)


def layouts(count: int) -> list[Layout]:
    """Strategies of many sizes, of which some have the same layout in other batches.

    Of few, each fourth answers wrongly.
    """
    return [
        replace(
            ALONE,
            strategy_id=f"tiny_{number:03}",
            dp=SIZES[number // 4 % len(SIZES)],
            pace_ms=10 + 7 * number % 31,
            batch_size=2 ** (number % 4),
            diverges_every=int(count < MANY and number % 4 == 3),
        )
        for number in range(count)
    ]


def named(number: int, layout: Layout, **more: Any) -> dict[str, Any]:
    """An entry whose strategy has an odd name of its own."""
    name = f"{NAMES[number % len(NAMES)][:90]} {number}"
    return entry(layout, **{"strategy": name, **more})


def summary_of(run: Path) -> RunSummary:
    collector = ResultCollector(run)
    collector.ingest_run()
    return RunSummary.load(collector.results, run.name, price_per_gpu_hour=2.0)


def write_many(folder: Path, count: int, **more: Any) -> Path:
    """A run of so many strategies, each of which has answered everything."""
    run = folder / "runs" / RUN
    # Too few answers would show nobody to be wrong.
    asked = prompts(1 if count == MANY else 4)
    write_prompts(run, asked)
    found = layouts(count)
    if not more:
        for layout in found:
            write_strategy(run, layout, asked)
    entries = [named(number, layout, **more) for number, layout in enumerate(found)]
    write_manifest(run, entries)
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_many(tmp_path_factory.mktemp("study"), MANY)


@pytest.fixture(scope="module")
def many(run: Path) -> RunSummary:
    return summary_of(run)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[Figure, list[tuple[str, Bbox]]]:
    """The texts of each drawing, as it was drawn last: their words and where they are."""
    found: dict[Figure, list[tuple[str, Bbox]]] = {}
    draw_figure = Figure.draw
    draw_text = Text.draw

    def anew(figure: Figure, renderer: Any) -> None:
        found[figure] = []
        draw_figure(figure, renderer)

    def watched(text: Text, renderer: Any, *words: Any, **options: Any) -> None:
        figure = text.get_figure(root=True)
        if text.get_text().strip() and text.get_visible():
            found[figure].append((text.get_text(), text.get_window_extent(renderer)))
        draw_text(text, renderer, *words, **options)

    monkeypatch.setattr(Figure, "draw", anew)
    monkeypatch.setattr(Text, "draw", watched)
    return found


def test_no_label_covers_another_or_is_cut_off(
    tmp_path: Path, drawn: dict[Figure, list[tuple[str, Bbox]]]
) -> None:
    summary = summary_of(write_many(tmp_path, 9))
    assert len(summary.ranking.wrong) == 2
    summary.build_plots()
    check_labels(drawn)


def check_labels(drawn: dict[Figure, list[tuple[str, Bbox]]]) -> None:
    """In each drawing all texts are whole, and none covers another one.

    The reader's fonts may be a little wider.
    """
    assert len(drawn) == 8
    for figure, texts in drawn.items():
        for place, (words, box) in enumerate(texts):
            wider = 0.04 * box.width
            assert figure.bbox.fully_contains(box.x0 - wider, box.y0), words
            assert figure.bbox.fully_contains(box.x1 + wider, box.y1), words
            for others, other in texts[place + 1 :]:
                assert not inner(box).overlaps(inner(other)), (words, others)


def inner(box: Bbox) -> Bbox:
    """Without the blank around letters."""
    return box.shrunk(0.9, 0.8).anchored("C", box)


def test_every_strategy_has_a_name_of_its_own_in_plots(many: RunSummary) -> None:
    names = plot_names(many)
    assert len(set(names.values())) == MANY
    assert not any(name.startswith("_") for name in names.values())
    assert max(map(len, names.values())) <= LONGEST_NAME


def test_the_page_of_many_is_small_and_has_all(
    many: RunSummary, run: Path, drawn: dict[Figure, list[tuple[str, Bbox]]]
) -> None:
    text = StudyReport(many, run).html()
    check_labels(drawn)
    assert len(text) < 5_000_000
    page = Page(text)
    assert page.open == []
    assert page.count["script"] == 1 and page.count["svg"] == 8
    for number in range(MANY):
        assert f"{NAMES[number % len(NAMES)][:90]} {number}" in page.text
    assert "The plots show the 60 best strategies" in page.text
    said = many.to_markdown()
    assert "![x](" not in said and "\\[x\\]" in said


def test_what_is_left_on_the_server_is_what_it_takes(many: RunSummary) -> None:
    left = NewStudyResult.model_validate(body_of(many, "tiny", 1.0))
    assert [one.rank for one in left.strategies] == list(range(1, MANY + 1))
    assert left.strategies[0].label == many.label(left.strategies[0].strategy_id)


def test_one_strategy_is_drawn_alone(
    tmp_path: Path, drawn: dict[Figure, list[tuple[str, Bbox]]]
) -> None:
    summary = summary_of(write_many(tmp_path, 1))
    for plot in summary.build_plots():
        if plot.name != "knee":
            assert NAMES[0] in plot.alt
    words = [text for texts in drawn.values() for text, _ in texts]
    assert any(text.startswith("<b>bold") for text in words)


def test_none_of_many_has_finished(tmp_path: Path) -> None:
    run = write_many(tmp_path, 20, status="FAILED", reason="no such partition")
    summary = summary_of(run)
    page = Page(StudyReport(summary, run).html())
    assert page.open == []
    assert "No strategy can be ranked." in page.text
    assert page.text.count("no such partition") >= 20
    assert {plot.alt for plot in summary.build_plots()} == {
        "There are no data for this plot."
    }
    left = NewStudyResult.model_validate(body_of(summary, "tiny", 1.0))
    assert {one.not_ranked for one in left.strategies} == {"it is FAILED"}
