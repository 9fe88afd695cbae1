"""`gpuyard models`: what language models there are, where they are loaded, and loading,
unloading, pinning by hand.
"""

from typing import Annotated, Any

import typer

from gpuyard.cli import suggest
from gpuyard.cli.arguments import AsJson
from gpuyard.cli.output import print_page, print_table
from gpuyard.cli.session import connect
from gpuyard.domain.units import format_duration, format_gb

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A name from [models.NAME] in gpuyard.toml.",
        autocompletion=suggest.models,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    models = typer.Typer(
        help="List the models, and load, unload or pin one.",
        invoke_without_command=True,
    )
    models.callback()(listing)
    for command in (load, unload, pin, unpin):
        models.command()(command)
    models.command("list", hidden=True)(listing)
    app.add_typer(models, name="models")


def listing(context: typer.Context, as_json: AsJson = False) -> None:
    """List the models: where they are loaded, how long they have been idle, who
    waits.
    """
    if context.invoked_subcommand:
        return
    from gpuyard.client import calls

    with connect() as client:
        found = client.call(calls.listing("models"))
        gpus = {gpu["uuid"]: gpu["index"] for gpu in client.call(calls.listing("gpus"))}
    if as_json:
        print_page(found)
        return
    columns = (
        "MODEL",
        "ENGINE",
        "NEEDS",
        "STATE",
        "GPU",
        "IDLE",
        "ANSWERED",
        "WAITING",
        "LOADS IN",
        "PROBLEM",
    )
    rows = [_row(model, gpus) for model in found]
    print_table(
        columns,
        rows,
        empty=(
            "No models. Add [models.NAME] to gpuyard.toml; the guide on models shows"
            " how."
        ),
    )
    keeping = {model["reserving_job_id"] for model in found} - {None}
    for job_id in sorted(keeping):
        typer.echo(
            f"Job {job_id} keeps GPUs free until it has all that it needs; `gpuyard why"
            f" {job_id}` says what it waits for."
        )


def _row(model: dict[str, Any], gpus: dict[str, int]) -> tuple[Any, ...]:
    there = model["replicas"]
    idle = [replica["idle_s"] for replica in there if replica["idle_s"] is not None]
    places = ", ".join(
        str(gpus.get(replica["gpu"], replica["gpu"])) for replica in there
    )
    return (
        model["name"],
        model["engine"],
        format_gb(model["memory_gb"]),
        model["state"] + (" (pinned)" if model["pinned"] else ""),
        places,
        format_duration(min(idle)) if idle else "",
        model["answered"],
        model["waiting"],
        format_duration(model["boot_s"]),
        model["problem"],
    )


def _tend(model: str, action: str, done: str) -> None:
    from gpuyard.client import calls

    with connect() as client:
        typer.echo(f"{client.call(calls.tend_model(model, action))} {done}")


def load(model: Model) -> None:
    """Load a model where a GPU is free."""
    _tend(model, "load", "is loaded, or on its way; `gpuyard models` shows it")


def unload(model: Model) -> None:
    """Unload a model once it has answered what it is at; it is pinned no more."""
    _tend(model, "unload", "leaves")


def pin(model: Model) -> None:
    """Load a model and keep it loaded, whatever comes."""
    _tend(model, "pin", "is pinned")


def unpin(model: Model) -> None:
    """Let the policy decide about a model again."""
    _tend(model, "unpin", "is no longer pinned")
