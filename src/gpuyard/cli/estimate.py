"""`gpuyard estimate`: where a job could run, how long that takes and what it costs,
before it is submitted.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from gpuyard.cli import suggest
from gpuyard.cli.job_files import load_spec
from gpuyard.cli.jobs import AsJson
from gpuyard.cli.options import given
from gpuyard.cli.output import print_json, print_table
from gpuyard.cli.session import connect
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.units import format_duration

# Thousands of offers that do not suit would hide those that do.
_MOST_UNSUITED = 20


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(estimate)


def estimate(
    file: Annotated[
        Path | None, typer.Argument(help="A JobSpec as .toml or .json; `-` reads JSON.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", "-g", help="Without a file: how many GPUs.")
    ] = None,
    gpu_memory: Annotated[
        str | None,
        typer.Option(
            help="Each with at least so much memory, such as 16GB.",
            autocompletion=suggest.gpu_sizes,
        ),
    ] = None,
    gpu_class: Annotated[
        str | None,
        typer.Option(
            help="Each of this class, such as A100.", autocompletion=suggest.gpu_classes
        ),
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="So many machines at once.")] = None,
    image: Annotated[
        str | None, typer.Option(help="In a container of this image.")
    ] = None,
    hours: Annotated[
        str | None,
        typer.Option("--time", help="It is expected to run so long, such as 2h."),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="cost, performance, availability or balanced; default: as configured.",
            autocompletion=suggest.strategies,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say where a job could run, best place first: the wait, the run, the price, and
    why the others do not suit.
    """
    from gpuyard.client import calls

    request = given(count=gpus, memory_gb=gpu_memory, gpu_class=gpu_class)
    if request and gpus is None:
        request["count"] = 1
    resources = given(nodes=nodes, gpus=request or None)
    fields = given(resources=resources or None, image=image, estimated_duration_s=hours)
    if file is not None and fields:
        raise InvalidInputError.of(
            "file", "comes with options that say what it says", "give a file or options"
        )
    body = load_spec(file) if file is not None else {"command": ["true"], **fields}
    with connect() as client:
        found = client.call(calls.estimate(body, strategy))
    if as_json:
        print_json(found)
        return
    _tell(found)


def _tell(found: dict[str, Any]) -> None:
    places = found["items"]
    suited = [place for place in places if place["suits"]]
    others = [place for place in places if not place["suits"]]
    typer.echo(
        f"Strategy {found['strategy']}; it runs"
        f" {format_duration(found['run_s'])} ({found['basis']})."
    )
    rows = [
        (
            place["name"],
            _time(place["wait_s"]),
            _time(place["run_s"]),
            _money(place["per_hour"], found),
            _money(place["cost"], found),
            "spot" if place["spot"] else None,
            place["region"],
            "; ".join(place["reasons"]),
        )
        for place in suited
    ]
    columns = ("PLACE", "WAIT", "RUN", "PER HOUR", "COST", "KIND", "REGION", "NOW")
    print_table(columns, rows, empty="Nothing suits it.")
    for place in others[:_MOST_UNSUITED]:
        typer.echo(f"  {place['name']} {'; '.join(place['reasons'])}")
    if len(others) > _MOST_UNSUITED:
        typer.echo(
            f"  … and {len(others) - _MOST_UNSUITED} more that do not suit; --json"
            " tells all"
        )


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return format_duration(seconds) if seconds else "none"


def _money(amount: float | None, found: dict[str, Any]) -> str:
    return "?" if amount is None else f"{amount:.3g} {found['currency']}"
