"""The page of a whole run: what it says, that it stands alone, and that it can be read
without eyes.
"""

from pathlib import Path

import pytest

from gpuyard import __version__
from gpuyard.studies.collector import ResultCollector
from gpuyard.studies.report import StudyReport
from gpuyard.studies.summary import RunSummary
from tests.support.page import Page
from tests.support.study_run import (
    ALONE,
    HYBRID,
    PIPELINE,
    RUN,
    entry,
    prompts,
    write_manifest,
    write_prompts,
    write_run,
)


def report(run: Path) -> str:
    collector = ResultCollector(run)
    collector.ingest_run()
    path = StudyReport(
        RunSummary.load(collector.results, run.name, price_per_gpu_hour=2.5), run
    ).write(collector.results)
    assert path.name == f"summary_{run.name}.html"
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    page = Page(report(write_run(tmp_path_factory.mktemp("study"))))
    assert page.open == []
    return page


def test_the_page_says_what_a_reader_asks(page: Page) -> None:
    for part in (
        "Best: cheapest",
        f"{ALONE.strategy_id} has 15.9 GPU-hours per million tokens, 55% less than",
        "What failed",
        "rank 1: CUDA out of memory",
        "the last line of shard_0.jsonl (line 40) is cut off",
        "8 answers are not the same as what they are compared with",
        "tokens 9",
        "NVIDIA A100-SXM4-40GB",
        "2.13.0",
        '"strategy_id": "llama8b_tp2_pp2"',
        "#SBATCH --nodes=4",
        "gpuyard study run .",
        "ab" * 32,
        f"Written by gpuyard {__version__}",
    ):
        assert part in page.text, part
    assert page.count["svg"] == 8


def test_the_page_asks_nobody_for_anything(page: Page) -> None:
    loading = ("src", "href", "xlink:href", "srcset", "action", "data")
    assert [
        one
        for one in page.attributes
        if one[1] in loading and not one[2].startswith("#")
    ] == []
    assert not {"link", "iframe", "img", "object"} & set(page.count)


def test_the_page_can_be_read_without_eyes(page: Page) -> None:
    assert ("html", "lang", "en") in page.attributes
    assert (
        sum(1 for tag, name, _ in page.attributes if tag == "svg" and name == "role")
        == 8
    )
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {
        value for _, name, value in page.attributes if name == "aria-labelledby"
    } <= set(ids)


def test_a_run_of_which_nothing_came(tmp_path: Path) -> None:
    run = tmp_path / "runs" / RUN
    write_prompts(run, prompts(1))
    write_manifest(
        run, [entry(HYBRID, "FAILED", "no such partition"), entry(PIPELINE, "PENDING")]
    )
    found = Page(report(run))
    assert (
        "No strategy can be ranked." in found.text and "no such partition" in found.text
    )
