"""`gpuyard cloud`: what is rented from clouds."""

import typer

from gpuyard.cli.cloud_machines import machines


def register(app: typer.Typer) -> None:
    """Add the commands."""
    cloud = typer.Typer(help="List what is rented from clouds.", no_args_is_help=True)
    cloud.command()(machines)
    # A group with one command would be that command.
    cloud.callback()(_group)
    app.add_typer(cloud, name="cloud")


def _group() -> None:
    """List what is rented from clouds."""
