"""The page is safe whatever the files say."""

import json
from hashlib import sha256
from pathlib import Path

from gpuyard.studies.collector import ResultCollector
from gpuyard.studies.report import StudyReport
from gpuyard.studies.summary import RunSummary
from tests.support.page import Page
from tests.support.study_run import (
    ALONE,
    HYBRID,
    RUN,
    entry,
    metrics_path,
    prompts,
    row,
    shard_path,
    write_manifest,
    write_prompts,
    write_strategy,
)

EVIL = "</td><script>alert(1)</script><img src=x onerror=alert(1)>"


def test_what_files_say_stays_text(tmp_path: Path) -> None:
    run = tmp_path / "runs" / RUN
    asked = prompts(2)
    write_prompts(run, asked)
    write_strategy(run, ALONE, asked)
    path = shard_path(run, ALONE, 0)
    rows = [row(ALONE, prompt) | {"completion": EVIL} for prompt in asked]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    footer = metrics_path(run, ALONE, 0)
    footer.write_text(
        json.dumps(
            json.loads(footer.read_text())
            | {"error": EVIL, "gpu_name": EVIL, "host": EVIL}
        )
    )
    (run / ALONE.strategy_id / "job.slurm").write_text(f"#!/bin/bash\n</pre>{EVIL}")
    write_manifest(run, [entry(ALONE), entry(HYBRID, "FAILED", EVIL)])
    manifest = json.loads((run / "manifest.json").read_text()) | {
        "study": EVIL,
        "study_sha256": EVIL,
    }
    (run / "manifest.json").write_text(json.dumps(manifest))
    collector = ResultCollector(run)
    collector.ingest_run()
    found = Page(StudyReport(RunSummary.load(collector.results, run.name), run).html())
    assert found.open == []
    assert found.count["script"] == 1 and "img" not in found.count
    assert not any(name.startswith("on") for _, name, _ in found.attributes)
    assert found.text.count("alert(1)</script>") >= 4


def test_a_small_run_says_how_it_was_asked_for(tmp_path: Path) -> None:
    run = tmp_path / "runs" / RUN
    asked = prompts(2, ["2k"])
    told = {
        "local_model": "Llama-3-8B-0613",
        "source": "api.example:443",
        "local_api": "chat",
    }
    told_again = told | {"local_same": 0.5}
    write_prompts(run, [prompt | told_again for prompt in asked])
    write_strategy(run, ALONE, asked)
    write_manifest(run, [entry(ALONE)])
    options = {"variants": ["2k"], "limit": 2, "only": ["a wide one"]}
    (run / "manifest.json").write_text(
        json.dumps(json.loads((run / "manifest.json").read_text()) | options)
    )
    collector = ResultCollector(run)
    collector.ingest_run()
    summary = RunSummary.load(collector.results, run.name)
    found = Page(StudyReport(summary, run).html())
    assert (
        "gpuyard study run . --only 'a wide one' --variant 2k --limit 2" in found.text
    )
    who = "The baseline is Llama-3-8B-0613 at api.example:443, API chat."
    who += " Asked again, it gave the same answer in 50% of the times."
    assert who in found.text and who in summary.to_markdown()


def test_the_studys_file_is_shown_while_it_is_the_runs(tmp_path: Path) -> None:
    run = tmp_path / "runs" / RUN
    asked = prompts(1)
    write_prompts(run, asked)
    write_strategy(run, ALONE, asked)
    write_manifest(run, [entry(ALONE)])
    file = tmp_path / "study.toml"
    file.write_text("# of the run\n")
    told = json.loads((run / "manifest.json").read_text()) | {
        "study_sha256": sha256(file.read_bytes()).hexdigest()
    }
    (run / "manifest.json").write_text(json.dumps(told))
    collector = ResultCollector(run)
    collector.ingest_run()
    summary = RunSummary.load(collector.results, run.name)
    assert "# of the run" in Page(StudyReport(summary, run).html()).text
    file.write_text("# of another\n")
    assert "# of another" not in Page(StudyReport(summary, run).html()).text
