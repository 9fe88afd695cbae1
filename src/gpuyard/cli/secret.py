"""`gpuyard secret`: values that jobs refer to by name (`gpuyard run --secret NAME`)."""

import sys
from typing import Annotated

import typer

from gpuyard.cli import suggest
from gpuyard.cli.arguments import AsJson
from gpuyard.cli.output import clock, print_json, print_page, print_table
from gpuyard.cli.session import connect
from gpuyard.domain.errors import InvalidInputError

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="The secret's name.", autocompletion=suggest.secrets
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    secret = typer.Typer(
        help="Keep values that jobs refer to by name, such as keys.",
        no_args_is_help=True,
    )
    secret.command("set")(set_)
    secret.command("list")(listing)
    secret.command("rm")(remove)
    app.add_typer(secret, name="secret")


Shared = Annotated[
    bool,
    typer.Option("--shared", help="It is for the jobs of all, not only for yours."),
]


def set_(name: Name, shared: Shared = False, as_json: AsJson = False) -> None:
    """Set or replace a secret of yours, which your jobs get. Its value is asked for, or
    read from standard input; it is never an argument, because other programs see those.
    """
    value = _read_value(name)
    with connect() as client:
        facts = client.set_secret(name, value, shared=shared)
    if as_json:
        print_json(facts)
    else:
        typer.echo(f"{facts.name} is set; give it to a job with --secret {facts.name}")


def _read_value(name: str) -> str:
    """The value, without the end of its last line."""
    if sys.stdin.isatty():
        return str(typer.prompt(f"Value of {name}", hide_input=True, err=True))
    try:
        value = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise InvalidInputError.of(
            "standard input", "is no UTF-8 text", "encode it, such as with base64"
        ) from None
    return value.removesuffix("\n")


def listing(as_json: AsJson = False) -> None:
    """List the shared secrets and yours: their names, whose they are, when they were
    set and when a job last got them; never their values.
    """
    with connect() as client:
        found = client.secrets()
    if as_json:
        print_page(found)
        return
    rows = [
        (
            facts.name,
            facts.owner or "shared",
            facts.source,
            clock(facts.set_at) if facts.set_at else None,
            clock(facts.used_at) if facts.used_at else None,
        )
        for facts in found
    ]
    print_table(
        ("NAME", "OWNER", "SOURCE", "SET", "LAST USED"),
        rows,
        empty="There are no secrets: set one with `gpuyard secret set NAME`.",
    )


def remove(
    name: Name,
    shared: Shared = False,
    user: Annotated[
        str | None, typer.Option(metavar="USER", help="Whose; by default, yours.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove a secret of yours. Jobs that run keep its value; jobs that wait for a
    place fail when they start.
    """
    with connect() as client:
        facts = client.remove_secret(name, shared=shared, owner=user)
    if as_json:
        print_json(facts)
    else:
        typer.echo(f"{facts.name} is removed")
