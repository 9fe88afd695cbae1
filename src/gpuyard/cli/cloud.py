"""`gpuyard cloud`: what is rented from clouds, and the accounts there."""

import typer

from gpuyard.cli.cloud_accounts import check, prices
from gpuyard.cli.cloud_bills import bills
from gpuyard.cli.cloud_machines import machines


def register(app: typer.Typer) -> None:
    """Add the commands."""
    cloud = typer.Typer(
        help="List what is rented from clouds; check the accounts there.",
        no_args_is_help=True,
    )
    for command in (machines, check, prices, bills):
        cloud.command()(command)
    app.add_typer(cloud, name="cloud")
