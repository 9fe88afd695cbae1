"""`gpuyard recommend`: what a program needs, read off its text without running it."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.output import print_json, print_table
from gpuyard.cli.program_files import read_program
from gpuyard.domain.errors import GpuyardError
from gpuyard.domain.units import format_duration

if TYPE_CHECKING:
    from gpuyard.cli.program_files import ProgramFiles
    from gpuyard.client.sync import Client
    from gpuyard.domain.program_needs import MeasuredNeeds, ProgramNeeds


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
    project: Annotated[
        str | None,
        typer.Option(help="Also count what others have run in this project."),
    ] = None,
    measured: Annotated[
        bool,
        typer.Option(
            "--measured/--no-measured",
            help="Ask the server, if one runs, what was measured of earlier runs.",
        ),
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a training program needs, and why: GPUs, memory, tier, time and price.

    The program is read, never run. What was measured of its earlier runs comes before
    what is computed. What nothing says is not known, and this is said.
    """
    words = list(program)
    if len(words) > 1 and words[-1] == "--json":
        words.pop()
        as_json = True
    found = _found(words, project, measured=measured)
    if as_json:
        print_json(found)
        return
    tell(found)


def _found(
    words: Sequence[str], project: str | None, *, measured: bool
) -> dict[str, Any]:
    """The recommendation; with what was measured, if a server runs that knows it."""
    if not measured:
        return recommendation_for(words)
    from gpuyard.cli.session import connect

    with suppress(GpuyardError), connect(start=False) as client:
        return recommendation_for(words, client=client, project=project)
    return recommendation_for(words)


def recommendation_for(
    words: Sequence[str],
    folder: Path | None = None,
    *,
    client: "Client | None" = None,
    project: str | None = None,
) -> dict[str, Any]:
    """The recommendation for the program that the words of a command start.

    With a client, what was measured of earlier runs corrects what is computed.
    InvalidInputError for what is no program.
    """
    from gpuyard.insight.needs.measured import answer_of, corrected, needs_of
    from gpuyard.insight.needs.recommend import recommend as recommend_program
    from gpuyard.insight.needs.sources import Sources

    files = read_program(words, folder or Path.cwd())
    sources = Sources(files.texts, files.entry)
    found = recommend_program(sources, files.arguments, files.launcher)
    if client is not None:
        known = _measured(client, files, needs_of(found), project)
        if known is not None:
            found = corrected(found, known)
    return answer_of(found)


def _measured(
    client: "Client", files: "ProgramFiles", needs: "ProgramNeeds", project: str | None
) -> "MeasuredNeeds | None":
    """What the server knows of runs of a program; None from one that is older."""
    from gpuyard.client import calls
    from gpuyard.domain.program_needs import MeasuredNeeds

    program = str(files.path.absolute())
    asked = {
        "needs": needs.model_dump(mode="json", exclude_defaults=True),
        "command": [program, *files.arguments],
        "project": project,
    }
    with suppress(GpuyardError):
        answer = client.call(calls.measured_needs(asked))
        return MeasuredNeeds.model_validate(answer)
    return None


def tell(found: dict[str, Any]) -> None:
    """Print a recommendation for people."""
    typer.echo(headline(found))
    for line in found["lines"]:
        typer.echo(f"  {_about(line)}")
    for unknown in found["unknown"]:
        typer.echo(f"  don't know {unknown}")
    for warning in found["warnings"]:
        typer.echo(f"  warning: {warning}")
    if found["hours"]:
        typer.echo(f"  {_about_time(found)}")
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


def _about_time(found: dict[str, Any]) -> str:
    """How long it takes on each type of GPU."""
    hours = ", ".join(
        f"{name} {format_duration(value * 3600)}"
        for name, value in found["hours"].items()
    )
    work = f" for {found['work']}" if found["work"] else ""
    share = f"{100 * found['utilisation']:.0f} % of a GPU's peak"
    basis = "as measured" if _has_measured_time(found["measured"]) else f"at {share}"
    return f"time{work} {basis}: {hours}"


def _has_measured_time(measured: dict[str, Any] | None) -> bool:
    known = measured or {}
    own: dict[str, Any] = known.get("own") or {}
    alike: dict[str, Any] = known.get("alike") or {}
    return bool(own.get("times") or alike.get("gpu_s_per_teraflop"))


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
