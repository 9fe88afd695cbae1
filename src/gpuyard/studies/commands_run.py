"""`gpuyard study run, resume, status, report`: run a study and report its results."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.client.printing import print_json, print_table, say
from gpuyard.domain.errors import GpuyardError, InvalidInputError
from gpuyard.studies.commands import (
    AsJson,
    Folder,
    Limit,
    OneVariant,
    Provider,
    app,
    extra_needed,
    variants_of,
)

if TYPE_CHECKING:
    from gpuyard.studies.manifest import ManifestEntry, RunManifest
    from gpuyard.studies.pipeline import DistributedExperimentPipeline
    from gpuyard.studies.study import Study, Variant
    from gpuyard.studies.summary import RunSummary

FailFast = Annotated[
    bool, typer.Option("--fail-fast", help="Stop at the first strategy that fails.")
]
_FAILED = 1
_INTERRUPTED = 130


@app.command()
@extra_needed
def run(
    directory: Folder = Path(),
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="S", help="Only this one; more may be named."),
    ] = None,
    variant: OneVariant = "",
    limit: Limit = None,
    fail_fast: FailFast = False,
    override: Annotated[
        bool,
        typer.Option(
            "--override/--no-override",
            help="Begin anew though the newest run is not over.",
        ),
    ] = False,
    provider: Provider = "slurm",
) -> None:
    """Ask the baseline, run the strategies one after the other, report.

    Exit code 1 when one has failed.
    """
    study = _checked(directory, provider)
    variants = variants_of(variant)
    with _session(study, provider) as pipeline:
        pipeline.chosen(only or ())
        _refuse_unfinished(study, override)
        _ask_baseline(study, variants, limit)
        manifest = pipeline.begin(only or (), variants, limit)
        say(f"{manifest.run_id} in {manifest.path.parent}")
        _go_on(study, pipeline, manifest, only or (), fail_fast=fail_fast)


@app.command()
@extra_needed
def resume(
    directory: Folder = Path(),
    fail_fast: FailFast = False,
    provider: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Which of the providers is the cluster.",
            show_default="that of the run",
        ),
    ] = "",
) -> None:
    """Go on with the newest run: what is under way is seen to its end, what failed is
    tried again.
    """
    provider = provider or _provider_of_newest(directory)
    study = _checked(directory, provider)
    with _session(study, provider) as pipeline:
        manifest = pipeline.newest()
        pipeline.reopen(manifest)
        _go_on(study, pipeline, manifest, manifest.only, fail_fast=fail_fast)


@app.command()
def status(directory: Folder = Path(), as_json: AsJson = False) -> None:
    """Show what became of each job of the newest run."""
    from gpuyard.studies.manifest import RunManifest, newest_run
    from gpuyard.studies.study import load_study

    manifest = RunManifest.load(newest_run(load_study(directory).runs))
    if as_json:
        print_json(
            {
                "run_id": manifest.run_id,
                "items": [asdict(entry) for entry in manifest.entries],
                "next": None,
            }
        )
        return
    say(manifest.run_id)
    _print_entries(manifest)
    for entry in manifest.newest().values():
        _print_failure(entry)


@app.command()
def show(
    strategy: Annotated[
        str, typer.Argument(metavar="STRATEGY", help="A strategy's name or its id.")
    ],
    directory: Folder = Path(),
    as_json: AsJson = False,
) -> None:
    """Show one strategy of the newest run: layout, engine, job, and why it failed."""
    from gpuyard.studies.manifest import RunManifest, newest_run
    from gpuyard.studies.strategy_details import details_of
    from gpuyard.studies.study import load_study

    study = load_study(directory)
    manifest = RunManifest.load(newest_run(study.runs))
    found = details_of(study, manifest, strategy)
    if as_json:
        print_json({"run_id": manifest.run_id, "items": found, "next": None})
        return
    say(manifest.run_id)
    for one in found:
        for name, value in one.items():
            if name not in ("failure", "reason") and value not in (None, ""):
                say(f"{name.replace('_', ' '):<12} {value}")
        _print_failure(manifest.newest()[one["strategy_id"]])


@app.command()
@extra_needed
def report(directory: Folder = Path()) -> None:
    """Read the newest run's results anew and write its tables, plots and page. The
    server gets them too, if one runs.
    """
    from gpuyard.client.connection import find_server
    from gpuyard.client.sync import Client
    from gpuyard.studies.left_results import leave_results
    from gpuyard.studies.manifest import RunManifest, newest_run
    from gpuyard.studies.pipeline import alone, collect_results, is_running
    from gpuyard.studies.study import load_study

    study = load_study(directory)
    if is_running(study):
        say("The run goes on; this is what it has so far.")
    else:
        with alone(study):
            collect_results(study, RunManifest.load(newest_run(study.runs)))
    summary = _report(study, RunManifest.load(newest_run(study.runs)))
    with _server_may_fail(), Client(find_server(start=False)) as client:
        leave_results(client, summary, study.model.name)


@contextmanager
def _session(
    study: "Study", provider: str
) -> "Generator[DistributedExperimentPipeline]":
    """Yield a pipeline that holds the study's lock."""
    from gpuyard.client.sync import Client
    from gpuyard.studies.pipeline import DistributedExperimentPipeline

    told: dict[int, str] = {}
    with Client() as client:
        pipeline = DistributedExperimentPipeline(
            study,
            client,
            provider=provider,
            tell=lambda manifest: _tell(manifest, told),
        )
        with pipeline.alone():
            yield pipeline


def _checked(directory: Path, provider: str) -> "Study":
    """The study, if it can run; InvalidInputError names all that is wrong."""
    from gpuyard.studies.study import load_study
    from gpuyard.studies.validation import validate_on_cluster

    study = load_study(directory)
    found = validate_on_cluster(study, provider)
    for warning in found.warnings:
        say(f"warning  {warning}")
    if found.faults:
        raise InvalidInputError(list(found.faults))
    return study


def _provider_of_newest(directory: Path) -> str:
    """Return the provider of the newest run, which goes on where it began."""
    from gpuyard.studies.manifest import RunManifest, newest_run
    from gpuyard.studies.study import load_study

    return RunManifest.load(newest_run(load_study(directory).runs)).provider


def _refuse_unfinished(study: "Study", override: bool) -> None:
    from gpuyard.studies.manifest import RunManifest, runs_of

    runs = runs_of(study.runs)
    if not runs or override:
        return
    under_way = [
        entry for entry in RunManifest.load(runs[-1]).entries if not entry.over
    ]
    if under_way:
        fault = (
            f"is not over in {runs[-1].name}: {under_way[0].strategy_id} is"
            f" {under_way[0].status}"
        )
        raise InvalidInputError.of(
            "study", fault, "`gpuyard study resume`, or --override to begin anew"
        )


def _ask_baseline(
    study: "Study", variants: "tuple[Variant, ...]", limit: int | None
) -> None:
    """Ask the endpoint for the baseline's answers to the prompts of a run.

    A prompt without an answer causes a warning and does not stop the run.
    """
    from gpuyard.studies.baseline import LocalInferenceRunner
    from gpuyard.studies.prompts import (
        PromptDataFrameBuilder,
        PromptFileSet,
        PromptRepository,
        TokenCounter,
    )
    from gpuyard.studies.tables import rows_of

    if study.baseline:
        runner = LocalInferenceRunner.of(study)
        builder = PromptDataFrameBuilder(
            PromptRepository(PromptFileSet.of(study)), TokenCounter.of(study)
        )
        asked = rows_of(runner.run(builder.build(variants, limit)))
        runner.persist(runner.attach_metrics(builder.build()), study.baseline_table)
        for row in asked:
            if row["status"] != "ok":
                say(
                    f"warning  no baseline for {row['prompt_id']} of {row['variant']}:"
                    f" {row['reason']}"
                )


def _tell(manifest: "RunManifest", told: dict[int, str]) -> None:
    """Print one line for each entry that has changed."""
    for number, entry in enumerate(manifest.entries):
        words = _words(entry)
        if told.get(number) != words:
            told[number] = words
            say(words)


def _name(entry: "ManifestEntry") -> str:
    """The id of a strategy, and the name that its study gives it, if it gives one."""
    if entry.strategy in ("", entry.kind):
        return entry.strategy_id
    return f"{entry.strategy} ({entry.strategy_id})"


def _words(entry: "ManifestEntry") -> str:
    job = f" as job {entry.job_id}" if entry.job_id else ""
    took = f" after {entry.elapsed_s:.0f} s" if entry.elapsed_s is not None else ""
    state = entry.status if entry.over else entry.state or entry.status
    reason = f": {entry.reason}" if entry.reason else ""
    return f"{_name(entry):<24} {state.lower()}{job}{took}{reason}"


def _print_failure(entry: "ManifestEntry") -> None:
    """Say why a job failed: the last lines of its rank, their file, and what to do."""
    from gpuyard.studies.failures import JobFailure

    failure = JobFailure.of(entry.failure)
    if failure is None:
        return
    where = f", {failure.where}" if failure.where else ""
    say(f"\n{_name(entry)} is {entry.status}{where}: {entry.reason or ''}")
    for line in failure.lines:
        say(f"    {line}")
    if failure.log:
        say(f"log:        {failure.log}")
    say(f"what to do: {failure.advice}")


def _print_entries(manifest: "RunManifest") -> None:
    columns = ("STRATEGY", "TRY", "JOB", "STATUS", "SECONDS", "PEAK GIB", "WHY")
    rows: list[tuple[Any, ...]] = [
        (
            _name(entry),
            entry.attempt,
            entry.job_id,
            entry.status,
            None if entry.elapsed_s is None else round(entry.elapsed_s),
            (
                None
                if entry.max_rss_bytes is None
                else round(entry.max_rss_bytes / 2**30, 2)
            ),
            entry.reason,
        )
        for entry in manifest.entries
    ]
    print_table(columns, rows)


def _go_on(
    study: "Study",
    pipeline: "DistributedExperimentPipeline",
    manifest: "RunManifest",
    only: Any,
    *,
    fail_fast: bool,
) -> None:
    """Run the remaining jobs and write the report.

    Ctrl-C does not stop jobs that were submitted.
    """
    from gpuyard.studies.left_results import leave_results

    try:
        well = pipeline.run(manifest, only, fail_fast=fail_fast)
    except KeyboardInterrupt:
        say(
            "Stopped. What was submitted goes on; `gpuyard study resume` goes on with"
            " the study."
        )
        raise typer.Exit(_INTERRUPTED) from None
    summary = _report(study, manifest)
    with _server_may_fail():
        leave_results(pipeline.client, summary, study.model.name)
    if not well:
        say("Something failed; `gpuyard study resume` tries that again.")
        raise typer.Exit(_FAILED)


def _report(study: "Study", manifest: "RunManifest") -> "RunSummary":
    from gpuyard.studies.report import load_summary, write_report

    summary = load_summary(study, manifest)
    for path in write_report(study, manifest, summary):
        say(f"wrote {path}")
    return summary


@contextmanager
def _server_may_fail() -> Generator[None]:
    """Warn if the server cannot be told the results; the files say the same."""
    try:
        yield
    except GpuyardError as error:
        say(f"warning  the server does not have the results: {error}")
