"""`gpuyard cloud check` and `prices`: the accounts of providers at their clouds."""

from typing import Annotated

import typer

from gpuyard.cli import suggest
from gpuyard.cli.arguments import AsJson
from gpuyard.cli.output import print_json, print_page, print_table
from gpuyard.cli.session import connect

_LACKS = 4
Provider = Annotated[
    str,
    typer.Argument(
        metavar="PROVIDER",
        help="The name of a provider, such as aws.",
        autocompletion=suggest.listed("providers"),
    ),
]


def check(provider: Provider, as_json: AsJson = False) -> None:
    """Name each permission that the account of a provider lacks, and what it is needed
    for. Nothing is rented. Exit code 4 if one is missing.
    """
    from gpuyard.client import cloud_calls

    with connect() as client:
        found = client.call(cloud_calls.check_account(provider))
    if as_json:
        print_json(found)
    else:
        typer.echo(found.message)
        for right in found.missing:
            typer.echo(f"  {right.action}: needed for {right.needed_for}")
    if found.missing:
        raise typer.Exit(_LACKS)


def prices(
    provider: Provider,
    refresh: Annotated[
        bool,
        typer.Option("--refresh", help="Read them anew from the cloud, and keep them."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the on-demand prices that are used when the cloud tells none, each with its
    source and date.
    """
    from gpuyard.client import cloud_calls

    with connect() as client:
        found = client.call(cloud_calls.prices(provider, refresh=refresh))
    if as_json:
        print_page(found)
        return
    rows = [
        (
            row.region,
            row.type,
            f"{row.price_per_hour:f} {row.currency}",
            row.source,
            row.date,
        )
        for row in found
    ]
    columns = ("REGION", "TYPE", "PER HOUR", "SOURCE", "DATE")
    print_table(columns, rows, empty="No price of the configured regions is known.")
