"""`gpuyard recommend`: what a program needs, read off its text without running it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuyard.cli.output import print_json, print_table
from gpuyard.cli.program_files import read_program
from gpuyard.domain.units import format_duration


def register(app: typer.Typer) -> None:
    """Add the command."""
    settings = {"ignore_unknown_options": False, "allow_interspersed_args": False}
    app.command(context_settings=settings)(recommend)


def recommend(
    program: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH [ARGS…]",
            help="A script, a notebook, a folder, or a command such as"
            " `torchrun --nproc-per-node 4 train.py`; with its arguments.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a training program needs, and why: GPUs, memory, tier, time and price.

    The program is read, never run. What it does not say is not known, and this is said.
    """
    words = list(program)
    if len(words) > 1 and words[-1] == "--json":
        words.pop()
        as_json = True
    found = recommendation_for(words)
    if as_json:
        print_json(found)
        return
    tell(found)


def recommendation_for(
    words: Sequence[str], folder: Path | None = None
) -> dict[str, Any]:
    """The recommendation for the program that the words of a command start."""
    from gpuyard.insight.needs.recommend import recommend as recommend_program
    from gpuyard.insight.needs.recommend import to_json
    from gpuyard.insight.needs.sources import Sources

    files = read_program(words, folder or Path.cwd())
    sources = Sources(files.texts, files.entry)
    return to_json(recommend_program(sources, files.arguments, files.launcher))


def tell(found: dict[str, Any]) -> None:
    """Print a recommendation for people."""
    typer.echo(headline(found))
    for line in found["lines"]:
        typer.echo(f"  {_about(line)}")
    for unknown in found["unknown"]:
        typer.echo(f"  don't know {unknown}")
    for warning in found["warnings"]:
        typer.echo(f"  warning: {warning}")
    if found["work"]:
        hours = ", ".join(
            f"{name} {format_duration(value * 3600)}"
            for name, value in found["hours"].items()
        )
        share = f"{100 * found['utilisation']:.0f} % of a GPU's peak"
        typer.echo(f"  time for {found['work']} at {share}: {hours}")
    rows = [_row(row) for row in found["tiers"]]
    print_table(("TIER", "UNITS", "PER HOUR", "TIME", "COST", "SUITS"), rows, empty="")


def headline(found: dict[str, Any]) -> str:
    """The recommendation in one line."""
    needs = found["needs"]
    words = "no GPU"
    if needs["gpus"]:
        count = needs["gpus"]
        words = f"{count} GPU" if count == 1 else f"{count} GPUs"
        size = needs["gpu_memory_gb"]
        words += f" with {size} GB" if size else ""
        words += f" on each of {needs['nodes']} nodes" if needs["nodes"] > 1 else ""
    tier = found["tier"] or "no tier"
    sure = f"Confidence {found['confidence']}: {'; '.join(found['confidence_reasons'])}"
    return f"{found['entry']}: {tier}, {words}. {sure}."


def _about(line: dict[str, Any]) -> str:
    if line["path"] is None:
        return line["says"]
    where = line["path"] if line["line"] is None else f"{line['path']}:{line['line']}"
    code = f" `{line['code']}`" if line["code"] else ""
    return f"{where}{code}: {line['says']}"


def _row(row: dict[str, Any]) -> tuple[str | None, ...]:
    currency = row["currency"]
    return (
        row["id"],
        str(row["units"]),
        f"{row['per_hour']:.3g} {currency}",
        None if row["hours"] is None else format_duration(row["hours"] * 3600),
        None if row["cost"] is None else f"{row['cost']:.2f} {currency}",
        "yes" if row["suits"] else f"no: {row['reason']}",
    )
