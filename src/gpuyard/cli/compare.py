"""`gpuyard compare`: the curves of several jobs side by side."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli import suggest
from gpuyard.cli.jobs import AsJson
from gpuyard.cli.output import print_json, print_table, say
from gpuyard.cli.session import connect
from gpuyard.cli.written import write_file
from gpuyard.client.curves import Curve, drawn, page
from gpuyard.domain.errors import (
    InvalidInputError,
    NotFoundError,
    UnreachableError,
)

if TYPE_CHECKING:
    from gpuyard.client.sync_job import JobHandle

# As many as letters mark; more in one picture cannot be told apart.
_MOST = 26
_SHOWN_BY_DEFAULT = 4
_POINTS = 2000


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(compare)


def compare(
    jobs: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB…", help="Ids or names.", autocompletion=suggest.jobs
        ),
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option(help="Only this metric; may be given again."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Write a page with all curves to this file instead."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the metrics of jobs: their curves, drawn here or as a page that one can
    send, and their last, least and greatest values.
    """
    if len(jobs) > _MOST:
        fault = f"are {len(jobs)}; at most {_MOST} can be told apart"
        raise InvalidInputError.of("JOB", fault, "name fewer")
    found = _metrics(jobs, metric or [])
    if as_json:
        print_json(_document(found))
        return
    if html is not None:
        write_file(html, page(found))
        say(f"wrote {html}")
        return
    shown = [*found][: None if metric else _SHOWN_BY_DEFAULT]
    for name in shown:
        say("\n".join([name, *drawn(found[name]), ""]))
    columns = ("METRIC", "", "JOB", "POINTS", "LAST", "LEAST", "GREATEST")
    print_table(columns, _rows(found), empty="None of them shows a metric.")
    if len(shown) < len(found):
        say(f"Drawn: {', '.join(shown)}. --metric NAME draws another.")


def _metrics(jobs: Sequence[str], names: Sequence[str]) -> dict[str, list[Curve]]:
    """By metric, the curve of each job that shows it; those of most jobs first."""
    found: dict[str, list[Curve]] = {}
    with connect() as client:
        for place, reference in enumerate(dict.fromkeys(jobs)):
            job = client.job(reference)
            series = job.metrics(*names, points=_POINTS)
            series |= _of_mlflow(job, names)
            for name, points in series.items():
                mark = chr(ord("A") + place)
                curve = Curve.of(mark, job.info.name, job.id, points)
                found.setdefault(name, []).append(curve)
    for name in names:
        if name not in found:
            known = "`gpuyard compare` without --metric shows all that there are."
            raise NotFoundError(f"None of these jobs shows {name}.", known)
    order = sorted(found, key=lambda name: (-len(found[name]), name))
    return {name: found[name] for name in order}


def _of_mlflow(job: "JobHandle", names: Sequence[str]) -> dict[str, list[Any]]:
    """What a server of MLflow has of a job, if this shell names the server."""
    if "MLFLOW_TRACKING_URI" not in os.environ:
        return {}
    from gpuyard.client.mlflow_curves import MlflowServer, runs_on

    pages = [(link.run, link.url) for link in job.info.progress.links]
    try:
        server = MlflowServer.named()
        runs = runs_on(server, pages) if server else []
        return server.curves(runs, names, _POINTS) if server and runs else {}
    except UnreachableError as error:
        typer.echo(f"gpuyard: note: curves are missing: {error}", err=True)
        return {}


def _rows(found: Mapping[str, Sequence[Curve]]) -> list[tuple[str, ...]]:
    return [
        (
            name,
            curve.mark,
            curve.job_name,
            str(len(curve.values)),
            f"{curve.values[-1]:.6g}",
            f"{min(curve.values):.6g}",
            f"{max(curve.values):.6g}",
        )
        for name, curves in found.items()
        for curve in curves
    ]


def _document(found: Mapping[str, Sequence[Curve]]) -> dict[str, Any]:
    """For programs."""
    items = [
        {
            "metric": name,
            "curves": [
                {
                    "job": curve.job_id,
                    "name": curve.job_name,
                    "steps": curve.steps,
                    "values": curve.values,
                }
                for curve in curves
            ],
        }
        for name, curves in found.items()
    ]
    return {"items": items, "next": None}
