"""`gpuyard reservations`: GPUs and nodes that projects and users have for a time."""

from typing import TYPE_CHECKING, Annotated
from zoneinfo import ZoneInfo

import typer

from gpuyard.cli.jobs import AsJson
from gpuyard.cli.output import print_fields, print_json, print_page, print_table
from gpuyard.cli.session import connect
from gpuyard.domain.local_times import in_zone

if TYPE_CHECKING:
    from gpuyard.domain.reservations import Reservation

Reference = Annotated[
    str, typer.Argument(metavar="RESERVATION", help="An id, or the end of one.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    reservations = typer.Typer(
        help="Reserve GPUs or nodes for a time; list and remove reservations.",
        no_args_is_help=True,
    )
    reservations.command("add")(add)
    reservations.command("list")(listing)
    reservations.command("show")(show)
    reservations.command("rm")(remove)
    app.add_typer(reservations, name="reservations")


def add(
    begins: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Such as '2026-12-01 09:00'.")
    ],
    ends: Annotated[str, typer.Option("--to", metavar="TIME", help="Its end.")],
    project: Annotated[
        str | None, typer.Option(help="The project whose jobs get it.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="Or the user.")] = None,
    gpus: Annotated[
        int | None, typer.Option(help="How many GPUs; without it, all of --node.")
    ] = None,
    gpu_class: Annotated[
        str | None, typer.Option(help="Only such GPUs, for example h100.")
    ] = None,
    node: Annotated[str | None, typer.Option(help="Only on this node.")] = None,
    timezone: Annotated[
        str | None,
        typer.Option(metavar="ZONE", help="Of these times. This machine's."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Reserve GPUs, or a whole node, from one time to another. While it holds, only
    jobs of its project or user start there. Before that, jobs that end in time may.
    """
    fields = {
        "project": project,
        "user": user,
        "gpus": gpus,
        "gpu_class": gpu_class,
        "node": node,
        "timezone": timezone,
    }
    with connect() as client:
        done = client.reserve(begins, ends, **fields)
    if as_json:
        print_json(done)
        return
    begin = _time(done, "begins_at")
    end = _time(done, "ends_at")
    typer.echo(f"{done.id}: {_what(done)} for {_whose(done)} from {begin} to {end}")
    if done.problem:
        typer.echo(f"It lacks something: {done.problem}.")


def listing(
    ended: Annotated[
        bool, typer.Option("--all", help="Those that are over, too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the reservations, the first to begin first."""
    with connect() as client:
        found = client.reservations(ended=ended)
    if as_json:
        print_page(found)
        return
    columns = ("ID", "STATE", "FOR", "WHAT", "FROM", "TO", "PROBLEM")
    rows = [
        (
            one.id,
            one.state.value,
            _whose(one),
            _what(one),
            _time(one, "begins_at"),
            _time(one, "ends_at"),
            one.problem or "-",
        )
        for one in found
    ]
    print_table(columns, rows, empty="Nothing is reserved.")


def show(reference: Reference, as_json: AsJson = False) -> None:
    """Show a reservation and the GPUs that it has."""
    with connect() as client:
        one = client.reservation(reference)
    if as_json:
        print_json(one)
        return
    gpus = [f"{share.node}: {', '.join(share.gpu_uuids)}" for share in one.shares]
    fields = {
        "id": one.id,
        "state": one.state.value,
        "for": _whose(one),
        "what": _what(one),
        "from": _time(one, "begins_at"),
        "to": _time(one, "ends_at"),
        "time zone": one.timezone,
        "added by": one.created_by,
        "has": "; ".join(gpus),
        "problem": one.problem,
    }
    print_fields(fields)


def remove(reference: Reference, as_json: AsJson = False) -> None:
    """Remove a reservation. Its GPUs are for everybody again; what runs there runs
    on.
    """
    with connect() as client:
        before = client.remove_reservation(reference)
    if as_json:
        print_json(before)
    else:
        typer.echo(f"{before.id} is removed")


def _whose(one: "Reservation") -> str:
    return f"project {one.project}" if one.project else f"user {one.user}"


def _what(one: "Reservation") -> str:
    if one.gpus is None:
        return f"all of node {one.node}"
    kind = f" of class {one.gpu_class}" if one.gpu_class else ""
    where = f" on node {one.node}" if one.node else ""
    return f"{one.gpus} GPU{'' if one.gpus == 1 else 's'}{kind}{where}"


def _time(one: "Reservation", field: str) -> str:
    return in_zone(getattr(one, field), ZoneInfo(one.timezone))
