"""`gpuyard pools`: the nodes that are kept ready at providers."""

from typing import Annotated, Any

import typer

from gpuyard.cli.arguments import AsJson
from gpuyard.cli.cloud_lines import states_of
from gpuyard.cli.output import ago, print_json, print_page, print_table
from gpuyard.cli.session import connect

_COLUMNS = (
    "POOL",
    "PROVIDER",
    "SIZE",
    "NODES",
    "MIN",
    "MAX",
    "WAITING",
    "PER HOUR",
    "COST",
    "NOTE",
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    pools = typer.Typer(
        help="List the pools of nodes that are kept ready at providers.",
        invoke_without_command=True,
    )
    pools.callback()(list_pools)
    pools.command()(show)
    app.add_typer(pools, name="pools")


def list_pools(context: typer.Context, as_json: AsJson = False) -> None:
    """List the pools: their nodes by state, how many jobs wait for them, why they grow
    or do not, and what they cost.
    """
    if context.invoked_subcommand:
        return
    from gpuyard.client import calls

    with connect() as client:
        found = client.call(calls.listing("pools"))
    if as_json:
        print_page(found)
        return
    empty = "No pools: `[pools.NAME]` in gpuyard.toml makes one."
    print_table(_COLUMNS, map(_row, found), empty=empty)


def _row(pool: dict[str, Any]) -> tuple[Any, ...]:
    return (
        pool["name"],
        pool["provider"],
        pool["size"],
        states_of(pool["nodes"]),
        pool["min"],
        pool["max"],
        pool["waiting"],
        _money(pool["cost_per_hour"]),
        _money(pool["cost"]),
        pool["problem"] or pool["why"],
    )


def _money(amounts: dict[str, str]) -> str:
    return ", ".join(
        f"{float(amount):.2f} {currency}" for currency, amount in amounts.items()
    )


def show(
    pool: Annotated[str, typer.Argument(metavar="POOL", help="Its name.")],
    as_json: AsJson = False,
) -> None:
    """Show a pool with its newest nodes: what became of each, and why."""
    from gpuyard.client import calls

    with connect() as client:
        found = client.call(calls.pool(pool))
    if as_json:
        print_json(found)
        return
    print_table(_COLUMNS, [_row(found)], empty="")
    typer.echo()
    columns = ("NAME", "STATE", "MACHINE", "ASKED", "ENDED", "COST", "WHY")
    rows = [
        (
            node["name"],
            node["state"],
            node["reference"],
            ago(node["asked_at"]),
            ago(node["ended_at"]) if node["ended_at"] else "",
            f"{float(node['cost']):.2f} {node['currency']}" if node["cost"] else "",
            node["why"],
        )
        for node in found["newest_nodes"]
    ]
    print_table(columns, rows, empty="It has had no nodes yet.")
