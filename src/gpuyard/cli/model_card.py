"""`gpuyard artifacts card`: a model card, filled from a job."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.arguments import AsJson, Reference
from gpuyard.cli.output import print_json
from gpuyard.cli.session import connect
from gpuyard.cli.written import write_file
from gpuyard.domain.errors import InvalidInputError, RefusedError

if TYPE_CHECKING:
    from gpuyard.domain.jobs import Job
    from gpuyard.insight.needs.named import Named


def card(
    job: Reference,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A new file for it, such as README.md."),
    ] = None,
    license_name: Annotated[
        str, typer.Option("--license", help="As Hugging Face names it: `apache-2.0`.")
    ] = "unknown",
    base_model: Annotated[
        str | None,
        typer.Option(help="The model it began with; default: as the program says."),
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option(help="A tag of it; repeat it for more.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a model card in Hugging Face's format, filled from a job: its data,
    metrics, base model, command, cost and files.
    """
    from gpuyard.domain.model_card import CardFacts, model_card

    if output and output.exists():
        fault = f"{output} is there already"
        raise RefusedError(f"{fault}.", "Name a new file, or move that one.")
    with connect() as client:
        handle = client.job(job)
        info = handle.refresh()
        named = _named_in(info)
        facts = CardFacts(
            license_name,
            base_model or (named and named.base_model),
            [named.data] if named and named.data else [],
            tag or [],
        )
        text = model_card(info, handle.artifacts(), facts)
    if output:
        write_file(output, text)
    if as_json:
        print_json({"text": text, "file": str(output) if output else None})
    else:
        typer.echo(output or text, nl=bool(output))


def _named_in(info: "Job") -> "Named | None":
    """What the program of the job names, if it can be read here."""
    from gpuyard.cli.program_files import names_program, read_program
    from gpuyard.insight.needs.named import named_in
    from gpuyard.insight.needs.sources import Sources

    spec = info.spec or {}
    words = spec.get("command", [])
    if not names_program(words) or not spec.get("workdir"):
        return None
    try:
        files = read_program(words, Path(spec["workdir"]))
        return named_in(Sources(files.texts, files.entry), files.arguments)
    except (InvalidInputError, OSError):
        return None
