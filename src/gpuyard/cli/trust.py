"""`gpuyard trust`: how far places where jobs run are trusted, and putting one in
quarantine by hand.
"""

import time
from typing import Annotated

import typer

from gpuyard.cli import suggest
from gpuyard.cli.arguments import AsJson
from gpuyard.cli.output import clock, print_json, print_page, print_table
from gpuyard.cli.session import connect
from gpuyard.domain import units
from gpuyard.domain.errors import InvalidInputError, NotFoundError

Place = Annotated[
    str,
    typer.Argument(
        metavar="PLACE",
        help="A provider, an offer such as slurm/gpu, node:NAME or gpu:UUID.",
        autocompletion=suggest.places,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    trust = typer.Typer(
        help="List how far places are trusted; quarantine one.",
        invoke_without_command=True,
    )
    trust.callback()(listing)
    for command in (quarantine, forget):
        trust.command()(command)
    app.add_typer(trust, name="trust")


def listing(context: typer.Context, as_json: AsJson = False) -> None:
    """List what is recorded about places: their score, until when they are in
    quarantine, and why.
    """
    if context.invoked_subcommand:
        return
    with connect() as client:
        found = client.trust()
    if as_json:
        print_page(found)
        return
    now = time.time()
    rows = [
        (
            known.place,
            None if known.score is None else f"{known.score:.2f}",
            (
                clock(known.quarantined_until)
                if known.quarantined_until and known.quarantined_until > now
                else None
            ),
            known.reason,
            clock(known.updated_at),
        )
        for known in found
    ]
    columns = ("PLACE", "SCORE", "QUARANTINED UNTIL", "REASON", "RECORDED")
    print_table(
        columns,
        rows,
        empty="Nothing is recorded about any place: all are trusted alike.",
    )


def quarantine(
    place: Place,
    for_: Annotated[
        str,
        typer.Option(
            "--for", metavar="TIME", help="For so long from now, such as 30m."
        ),
    ] = "4h",
    reason: Annotated[str, typer.Option(help="Why, for people.")] = "",
    as_json: AsJson = False,
) -> None:
    """Give a place no new jobs for a while, but those that allow it
    (allowed.quarantined). What runs there, runs on.
    """
    with connect() as client:
        try:
            score = client.trust_of(place).score
        except NotFoundError:
            score = None
        done = client.record_trust(
            place,
            score=score,
            quarantined_until=time.time() + _seconds(for_),
            reason=reason,
        )
    if as_json:
        print_json(done)
    else:
        typer.echo(
            f"{done.place} is in quarantine until {clock(done.quarantined_until)}"
        )


def _seconds(text: str) -> float:
    try:
        seconds = units.seconds(text)
    except ValueError as error:
        fault, _, remedy = str(error).rpartition("; ")
        raise InvalidInputError.of("--for", fault, remedy) from None
    if seconds <= 0:
        raise InvalidInputError.of(
            "--for", f"is {text}", "give a time to come, such as 4h"
        )
    return seconds


def forget(place: Place, as_json: AsJson = False) -> None:
    """Forget what is recorded about a place: its score, and its quarantine, which
    ends.
    """
    with connect() as client:
        before = client.forget_trust(place)
    if as_json:
        print_json(before)
    else:
        typer.echo(f"{before.place} is trusted like any other again")
