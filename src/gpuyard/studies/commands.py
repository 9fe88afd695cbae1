"""`gpuyard study`: write a study, look at it, ask its baseline.

What runs it on a cluster is added to `app`.
"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.client.extras import needs_extra
from gpuyard.client.printing import print_json, print_table, say
from gpuyard.domain.errors import InvalidInputError
from gpuyard.studies.plugin import plugin

if TYPE_CHECKING:
    from pandas import DataFrame

    from gpuyard.studies.plan import PlanRow
    from gpuyard.studies.study import Study, Variant
    from gpuyard.studies.validation import StudyValidation

Folder = Annotated[
    Path,
    typer.Argument(
        metavar="[DIR]", help="The study's folder.", show_default="this folder"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
OneVariant = Annotated[
    str,
    typer.Option(
        "--variant", metavar="2k|4k", help="Only the prompts of this variant."
    ),
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", min=1, metavar="N", help="Only the first N prompts."),
]
Provider = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help=(
            "Which of the providers is the cluster; `local` is gpuyard's own nodes,"
            " `kubernetes` runs pods."
        ),
    ),
]
_REFUSED = 4

extra_needed = needs_extra("study", "studies")
app = plugin.new_app()


def variants_of(name: str) -> "tuple[Variant, ...]":
    """Return the variants that `--variant` selects: one, or all without the option."""
    from gpuyard.studies.study import VARIANTS

    chosen: tuple[Variant, ...] = tuple(
        variant for variant in VARIANTS if name in ("", variant)
    )
    if not chosen:
        raise InvalidInputError.of(
            "--variant", f"is {name!r}", f"use {' or '.join(VARIANTS)}"
        )
    return chosen


@app.command()
def init(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder for the study; it is made.")
    ],
) -> None:
    """Write a study to start from: a commented study.toml and forty prompts."""
    from gpuyard.studies import scaffold

    for path in scaffold.init(directory):
        say(f"wrote {path}")
    say(
        "Next: put the model's folder into study.toml (model.path), then `gpuyard study"
        " validate`."
    )


@app.command()
@extra_needed
def validate(
    directory: Folder = Path(),
    as_json: AsJson = False,
    provider: Provider = "slurm",
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="Also ask the baseline, and look at a node by a small job.",
        ),
    ] = False,
    probe_wait: Annotated[
        str,
        typer.Option(metavar="TIME", help="How long that job may take, with waiting."),
    ] = "5m",
) -> None:
    """Check a study without running it: prompts, model, strategies, cluster.

    Exit code 2 when something is wrong.
    """
    from gpuyard.studies.study import load_study
    from gpuyard.studies.validation import (
        StudyValidation,
        validate_by_trying,
        validate_on_cluster,
    )

    wait_s = _seconds("--probe-wait", probe_wait)
    try:
        study = load_study(directory)
        if probe:
            found = validate_by_trying(study, provider, wait_s)
        else:
            found = validate_on_cluster(study, provider)
    except InvalidInputError as error:
        found = StudyValidation(error.faults, ())
    if as_json:
        faults = [asdict(fault) for fault in found.faults]
        print_json(
            {
                "ok": not faults,
                "faults": faults,
                "warnings": list(found.warnings),
                "prompts": found.prompts,
            }
        )
    else:
        _print_review(found)
    if found.faults:
        raise typer.Exit(InvalidInputError.exit_code)


def _seconds(option: str, text: str) -> float:
    """Read a duration; InvalidInputError."""
    from gpuyard.domain import units

    try:
        return units.seconds(text)
    except ValueError:
        raise InvalidInputError.of(
            option, f"is {text!r}", "write seconds, or a duration such as 5m"
        ) from None


def _print_review(found: "StudyValidation") -> None:
    for warning in found.warnings:
        say(f"warning  {warning}")
    for fault in found.faults:
        say(f"wrong    {fault}")
    if found.prompts:
        say(f"fine     {found.prompts} prompts")
    if found.faults:
        say(f"{len(found.faults)} to correct before it can run.")
    else:
        say("The study can run.")


@app.command()
@extra_needed
def plan(directory: Folder = Path(), as_json: AsJson = False) -> None:
    """Show what each job would need: nodes, processes, memory per GPU; and why one
    cannot fit.
    """
    from gpuyard.studies.plan import plan as rows_of
    from gpuyard.studies.study import load_study

    rows = rows_of(load_study(directory))
    if as_json:
        print_json({"items": [asdict(row) for row in rows], "next": None})
        return
    columns = (
        "STRATEGY",
        "PROMPTS",
        "NODES",
        "GPUS",
        "TP",
        "PP",
        "DP",
        "BATCH",
        "WEIGHTS",
        "KV CACHE",
        "GIB PER GPU",
        "RULE OF THUMB",
        "FITS",
    )
    print_table(columns, [_plan_cells(row) for row in rows])
    for strategy, reason in {
        row.strategy_id: row.reason for row in rows if row.reason
    }.items():
        say(f"{strategy}: {reason}")


def _plan_cells(row: "PlanRow") -> tuple[Any, ...]:
    fits = {None: "unknown", True: "yes", False: "no"}[row.fits]
    return (
        row.strategy_id,
        row.variant,
        row.nodes,
        row.world_size,
        row.tp,
        row.pp,
        row.dp,
        row.batch_size,
        row.weights_gib,
        row.kv_cache_gib,
        row.total_gib,
        row.document_gib,
        fits,
    )


@app.command()
@extra_needed
def baseline(
    directory: Folder = Path(),
    variant: OneVariant = "",
    limit: Limit = None,
    override: Annotated[
        bool,
        typer.Option(
            "--override/--no-override", help="Ask again for what is answered already."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Ask the endpoint for its answer to every prompt; what is answered already is not
    paid for twice.
    """
    from gpuyard.studies.baseline import LocalInferenceRunner
    from gpuyard.studies.prompts import (
        PromptDataFrameBuilder,
        PromptFileSet,
        PromptRepository,
        TokenCounter,
    )
    from gpuyard.studies.study import load_study

    study = load_study(directory)
    wanted = variants_of(variant)
    runner = LocalInferenceRunner.of(study)
    builder = PromptDataFrameBuilder(
        PromptRepository(PromptFileSet.of(study)), TokenCounter.of(study)
    )
    asked = runner.run(builder.build(wanted, limit), override)
    runner.persist(runner.attach_metrics(builder.build()), study.baseline_table)
    failed = _report_baseline(study, asked, as_json)
    if failed:
        raise typer.Exit(_REFUSED)


def _report_baseline(study: "Study", asked: "DataFrame", as_json: bool) -> int:
    """Say how it went; how many prompts have no answer."""
    from gpuyard.studies.tables import rows_of

    rows = rows_of(asked)
    failed = [row for row in rows if row["status"] != "ok"]
    if as_json:
        told = [
            {key: row[key] for key in ("prompt_id", "variant", "reason")}
            for row in failed
        ]
        answered = len(rows) - len(failed)
        print_json(
            {"answered": answered, "failed": told, "table": str(study.baseline_table)}
        )
        return len(failed)
    for row in failed:
        say(f"failed   {row['prompt_id']} of {row['variant']}: {row['reason']}")
    say(
        f"{len(rows) - len(failed)} of {len(rows)} prompts are answered:"
        f" {study.baseline_table}"
    )
    if failed:
        say("Run it again to ask for the others.")
    return len(failed)
