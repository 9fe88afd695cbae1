"""What study.toml says of the report is what the report does."""

import csv
import json
from pathlib import Path

from gpuyard.studies.collector import ResultCollector
from gpuyard.studies.manifest import RunManifest
from gpuyard.studies.report import load_summary, write_report
from gpuyard.studies.study import Study
from tests.support.study_run import (
    ALONE,
    RUN,
    entry,
    prompts,
    write_manifest,
    write_prompts,
    write_strategy,
)
from tests.unit.studies.folders import make_study

BASELINE = (
    '[baseline]\nbase_url = "http://h/v1"\nmodel = "deployment-7"\nanswers_as ='
    ' "tiny/Tiny-8B"\n'
)


def reported(study: Study) -> tuple[dict[str, str], str]:
    """The first row of the table, and the text for people."""
    run = study.runs / RUN
    asked = prompts(2)
    write_prompts(run, asked)
    write_strategy(run, ALONE, asked)
    write_manifest(run, [{"strategy": ALONE.kind, **entry(ALONE)}])
    path = run / "manifest.json"
    path.write_text(
        json.dumps(
            {
                **json.loads(path.read_text()),
                "variants": ["2k", "4k"],
                "limit": None,
                "only": [],
            }
        )
    )
    ResultCollector(run, study.results).ingest_run()
    manifest = RunManifest.load(run)
    table, text, _ = write_report(study, manifest, load_summary(study, manifest))
    with table.open() as file:
        return next(csv.DictReader(file)), text.read_text()


def test_costs_and_meanings_are_what_the_study_asks_for(tmp_path: Path) -> None:
    settings = (
        '[report]\nprice_per_gpu_hour = 4.0\ncurrency = "EUR"\nembedding_model ='
        ' "no/such"\n'
    )
    row, text = reported(make_study(tmp_path, settings))
    assert float(row["cost"]) == 4 * float(row["gpu_hours"]) and "cost, EUR" in text
    assert "Embeddings are left out" in text


def test_the_name_that_an_endpoint_answers_by_decides_whose_model_it_is(
    tmp_path: Path,
) -> None:
    assert "compare models" not in reported(make_study(tmp_path, BASELINE))[1]
    (tmp_path / "2").mkdir()
    other = BASELINE.replace("Tiny-8B", "Tiny-70B")
    assert "compare models" in reported(make_study(tmp_path / "2", other))[1]
