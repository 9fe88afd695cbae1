"""`gpuyard cloud bills`: what a cloud bills, beside what gpuyard has counted."""

from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.arguments import AsJson
from gpuyard.cli.cloud_accounts import Provider
from gpuyard.cli.output import print_json, print_table, say, short_id
from gpuyard.cli.session import connect

if TYPE_CHECKING:
    from gpuyard.domain.bills import BillComparison, BilledMachine

_DIFFERS = 4
_COLUMNS = (
    "MACHINE",
    "JOB",
    "COUNTED",
    "BILLED",
    "DIFFERENCE",
    "BESIDES THE MACHINE",
    "WHY",
)
_SAME = "same"


def bills(
    provider: Provider,
    day: Annotated[
        str | None,
        typer.Option(
            "--day",
            metavar="DATE",
            help="A day of the bill, such as 2026-11-27. By default the newest that"
            " should be complete, which is two days ago.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare what a cloud bills for a day with what gpuyard has counted, machine by
    machine. Exit code 4 if they differ by more than the tolerance, or if the cloud
    bills a machine that gpuyard does not know. AWS charges a cent for the question.
    """
    from gpuyard.client import cloud_calls

    with connect() as client:
        found = client.call(cloud_calls.compare_bill(provider, day))
    if as_json:
        print_json(found)
    else:
        _print(found)
    if found.differs:
        raise typer.Exit(_DIFFERS)


def _print(found: "BillComparison") -> None:
    """The differences, and below them the sums."""
    different = [item for item in found.items if item.match != _SAME]
    print_table(_COLUMNS, map(_row, different), empty="No machine differs.")
    say()
    for one in found.sums:
        say(
            f"{found.provider}, {found.day} ({found.timezone}): billed"
            f" {_money(one.billed)} {one.currency}, counted {_money(one.counted)},"
            f" difference {_money(one.difference)}."
        )
    agree = len(found.items) - len(different)
    say(f"Machines that agree: {agree} of {len(found.items)}.")
    if found.estimated:
        say("The cloud calls this bill an estimate, so it may still change.")
    if found.differs:
        say(
            f"Look into it: the sums are more than {found.tolerance_percent:g} % apart,"
            " a machine is not known here, or it is billed in another currency."
        )


def _row(item: "BilledMachine") -> tuple[Any, ...]:
    others = {name: spent for name, spent in item.parts.items() if name != "machine"}
    return (
        item.machine,
        short_id(item.job_id) if item.job_id else item.owner,
        _money(item.counted),
        f"{_money(item.billed)} {item.currency}".strip(),
        _money(item.difference),
        ", ".join(f"{name} {_money(spent)}" for name, spent in others.items()),
        item.why,
    )


def _money(amount: Decimal | None) -> str:
    return "" if amount is None else f"{amount:.2f}"
