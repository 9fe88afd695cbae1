"""`gpuyard shares`: who has which share under the policy `fair`, and has used what."""

from typing import TYPE_CHECKING

import typer

from gpuyard.cli.jobs import AsJson
from gpuyard.cli.output import print_json, print_table, say
from gpuyard.cli.session import connect
from gpuyard.domain.units import format_duration

if TYPE_CHECKING:
    from gpuyard.domain.fair_shares import FairShare


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(shares)


def shares(as_json: AsJson = False) -> None:
    """List the share of each organisation, project and user, and what they have used
    of it.
    """
    with connect() as client:
        found = client.shares()
    if as_json:
        print_json(found)
        return
    if found.policy != "fair":
        say(f'The policy is {found.policy}: shares count only under policy = "fair".')
        return
    columns = ("WHO", "SHARES", "DUE", "USED", "OF ITS SHARE", "GPU HOURS")
    rows = [_row(share) for share in found.items]
    print_table(columns, rows, empty="Nobody has a share, a job or used anything yet.")
    say(f"What was used counts half after {format_duration(found.half_life_s)}.")


def _row(share: "FairShare") -> tuple[str, ...]:
    return (
        _who(share),
        f"{share.shares:g}",
        f"{share.due:.1%}",
        f"{share.used:.1%}",
        "–" if share.times is None else f"{share.times:.2f}×",
        f"{share.gpu_hours:.1f}",
    )


def _who(share: "FairShare") -> str:
    """Whose it is, further right the deeper it stands."""
    depth = (share.organisation is not None) + (share.project is not None)
    if share.level != "user":
        depth -= 1
    name = share.user or share.project or share.organisation or ""
    return f"{'  ' * depth}{name}"
