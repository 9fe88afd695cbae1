"""The answer of a run: its summary as a table for programs, one for people, and a page with plots."""

from collections.abc import Sequence
from pathlib import Path

from gpuyard.studies.correctness import CorrectnessEvaluator
from gpuyard.studies.manifest import Manifest
from gpuyard.studies.prompts import PromptFileSet, PromptRepository
from gpuyard.studies.report import Report
from gpuyard.studies.study import Study
from gpuyard.studies.summary import RunSummary
from gpuyard.studies.truth import load_truth


def write_report(study: Study, manifest: Manifest) -> Sequence[Path]:
    """Write them into the study's results; their paths."""
    wanted, results = study.report, study.results
    summary = RunSummary.load(
        results, manifest.run_id, evaluator=_evaluator(study), objective=wanted.objective,
        max_p90_ms=wanted.latency_limit_ms,
    )  # fmt: skip
    table = summary.to_csv(results)
    summary.to_markdown(results)
    return [table, table.with_suffix(".md"), Report(summary, manifest.path.parent).write(results)]


def _evaluator(study: Study) -> CorrectnessEvaluator:
    records = PromptRepository(PromptFileSet.of(study)).load_all()
    truth = load_truth(study.prompts.truth, records) if study.prompts.truth else None
    baseline = (study.baseline.answers_as or study.baseline.model) if study.baseline else None
    return CorrectnessEvaluator(truth, baseline_model=baseline, study_model=study.model.name)
