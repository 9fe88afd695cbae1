"""A job leaves far more than it was asked for, or texts that no file could hold: only
so much is read, the reasons say so, and the report is written all the same.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from gpuyard.studies.collector import Collected, ResultCollector
from gpuyard.studies.report import StudyReport
from gpuyard.studies.summary import RunSummary
from tests.support.study_run import (
    TENSOR,
    metrics_path,
    shard_path,
    write_sound_run,
)

# What a terminal obeys, what turns a line around, and half a character.
ODD = "\x1b[31m\u202eevil\ud800\x00" + "x" * 10_000


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_sound_run(tmp_path)


def collect(run: Path) -> Collected:
    (collected,) = ResultCollector(run).ingest_run()
    return collected


def change(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_far_more_lines_than_results_are_not_read(run: Path) -> None:
    shard = shard_path(run, TENSOR, 0)
    line = shard.read_text().splitlines(keepends=True)[-1]
    with shard.open("a") as file:
        # More than a block, of which each is read as a whole.
        file.write(line * (9 * 2**20 // len(line)))
        file.write(line)
    collected = collect(run)
    assert (collected.status, collected.rows) == ("PARTIAL", 6)
    told = "the ranks left more than 1,012 lines for 6 results: the others are not read"
    assert told in collected.reasons
    assert "1006 results are there twice, and the first counts: p03/4k" in (
        collected.reasons
    )


def test_many_damaged_lines_are_counted(run: Path) -> None:
    with shard_path(run, TENSOR, 0).open("a") as file:
        file.write("[]\n" * 500)
    collected = collect(run)
    assert collected.rows == 6 and len(collected.reasons) <= 21
    assert collected.reasons[-1].endswith("faults more")


def test_an_answer_is_no_longer_than_its_tokens_can_be(run: Path) -> None:
    shard = shard_path(run, TENSOR, 0)
    first, *others = shard.read_text().splitlines(keepends=True)
    long = json.dumps(json.loads(first) | {"completion": "x" * 100_000})
    shard.write_text("".join([f"{long}\n", *others]))
    collected = collect(run)
    assert (collected.status, collected.rows) == ("PARTIAL", 5)
    assert (
        "line 1 of shard_0.jsonl is no result and left out: it has more than 70,656"
        " bytes"
    ) in collected.reasons


@pytest.mark.parametrize("folder", ["", "{rank}/"])
def test_ranks_cannot_share_one_file(run: Path, folder: str) -> None:
    change(
        run / TENSOR.strategy_id / "exp_config.json",
        {
            "output_shard_pattern": f"{folder}shard_0.jsonl",
            "metrics_file": f"{folder}one.json",
        },
    )
    assert collect(run).status == "COMPLETED"


@pytest.mark.parametrize("times", [-5_000, 10**12])
def test_a_job_does_not_say_how_often_it_was_asked(run: Path, times: int) -> None:
    folder = run / TENSOR.strategy_id
    change(folder / "exp_config.json", {"repeats": times})
    again = folder / "repeats"
    again.mkdir()
    (again / "shard_0.jsonl").write_text("{}\n" * 3_000)
    collected = collect(run)
    assert collected.rows == 6
    assert any("repeats has more than" in each for each in collected.reasons)


def test_odd_texts_stop_no_report(run: Path) -> None:
    words = {"error": ODD, "gpu_name": ODD, "host": ODD, "gpu_id": ODD, "device": ODD}
    change(metrics_path(run, TENSOR, 0), words)
    config = {"kind": ODD, "engine": ODD, "run_id": ODD, "precision": ODD}
    change(run / TENSOR.strategy_id / "exp_config.json", config)
    (run / TENSOR.strategy_id / "profiling" / "trace_rank_0.json").rename(
        run
        / TENSOR.strategy_id
        / "profiling"
        / b"rank_0-\xff".decode("utf-8", "surrogateescape")
    )
    line = json.dumps({"prompt_id": ODD, "variant": "2k", "strategy_id": ODD})
    with shard_path(run, TENSOR, 0).open("a") as file:
        file.write(f"{line}\n")
    collector = ResultCollector(run)
    (collected,) = collector.ingest_run()
    assert collected.status == "PARTIAL"
    assert all(len(reason) <= 500 for reason in collected.reasons)
    assert any("rank 0 says:  [31m evil" in one for one in collected.reasons)
    summary = RunSummary.load(collector.results, run.name)
    said = summary.to_markdown(collector.results)
    page = StudyReport(summary, run).write(collector.results).read_text()
    for text in (said, page.split("Exact configuration")[0]):
        assert "evil" in text
        assert not any(one in text for one in "\x1b\u202e\x00")


def test_folders_with_odd_names_are_no_strategies(run: Path) -> None:
    for name in ("<b>", "a\nb", "x" * 201):
        other = run / name
        other.mkdir()
        (other / "exp_config.json").write_text("{}")
    assert collect(run).strategy_id == TENSOR.strategy_id
