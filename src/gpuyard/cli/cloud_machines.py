"""`gpuyard cloud machines`: what is rented now."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import typer

from gpuyard.cli.arguments import AsJson
from gpuyard.cli.output import ago, print_json, print_table, short_id
from gpuyard.cli.session import connect

_COLUMNS = (
    "MACHINE",
    "PROVIDER",
    "TYPE",
    "ZONE",
    "KIND",
    "STATE",
    "FOR",
    "NODE",
    "SINCE",
    "COST SO FAR",
)


def machines(as_json: AsJson = False) -> None:
    """List the machines that are rented now, for which job or pool, and what each has
    cost so far. The clouds themselves are asked, but no more often than every ten
    seconds.
    """
    from gpuyard.client import machine_calls

    with connect() as client:
        found = client.call(machine_calls.rented_machines())
    if as_json:
        print_json(found)
        return
    rows = map(_row, found["items"])
    empty = "Nothing is rented."
    if found["problems"]:
        empty = "Of the clouds that answer, nothing is rented."
    print_table(_COLUMNS, rows, empty=empty)
    for provider, problem in found["problems"].items():
        told_at = found["told_at"][provider]
        since = f" (its newest answer: {ago(told_at)})" if told_at else ""
        typer.echo(f"{provider} cannot be asked: {problem}{since}")


def owner_of(machine: Mapping[str, Any]) -> str:
    """For whom it is rented."""
    if machine["job_id"]:
        return short_id(machine["job_id"])
    pool = machine.get("pool")
    return f"pool {pool}" if pool else "nobody: it ends soon"


def _row(machine: dict[str, Any]) -> tuple[Any, ...]:
    cost = machine["cost"]
    return (
        machine["id"],
        machine["provider"],
        machine["type"],
        machine["zone"],
        "spot" if machine["spot"] else "on demand",
        machine["state"],
        owner_of(machine),
        machine["node"],
        ago(machine["launched_at"]),
        "" if cost is None else f"{Decimal(cost):.2f} {machine['currency']}",
    )
