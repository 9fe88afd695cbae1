"""`gpuyard top`: every GPU at a glance, live, with keys that act on the one that is
chosen.
"""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.dashboard import COLUMNS, Item, Seen, disk_problems, foot, rows
from gpuyard.cli.output import print_json, print_table, say
from gpuyard.cli.session import connect
from gpuyard.domain.errors import GpuyardError, InvalidInputError

if TYPE_CHECKING:
    from gpuyard.client.sync import Client


_MOST_JOBS = 200
_MACHINES_EVERY_S = 10.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(top)


def top(
    once: Annotated[
        bool, typer.Option("--once", help="Print it and leave, as it does in a pipe.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="What it shows, as one JSON document.")
    ] = False,
) -> None:
    """Show every GPU: the model or script on it, how far it is, and what waits; below
    them the running jobs that use no GPU, pools, and what is rented.

    Keys are named below the table.
    """
    with connect() as client:
        if as_json:
            seen = Looker(client).look()
            print_json(
                {
                    "gpus": seen.gpus,
                    "jobs": seen.jobs,
                    "batches": seen.batches,
                    "waiting": seen.waiting,
                    "disk_problems": seen.disk_problems,
                    "pools": seen.pools,
                    "machines": seen.machines,
                }
            )
        elif once or not sys.stdout.isatty():
            _print(Looker(client).look())
        else:
            _screen(client)


class Looker:
    """Asks the server again and again."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._machines: Sequence[Item] = ()
        self._next_machines_at = time.monotonic()

    def look(self) -> Seen:
        """What there is now."""
        from gpuyard.client import calls

        call = self._client.call
        waiting = {
            queue["name"]: queue["waiting"] for queue in call(calls.listing("queues"))
        }
        running, _ = call(calls.jobs({"state": ["running"], "limit": _MOST_JOBS}))
        return Seen(
            gpus=call(calls.listing("gpus")),
            jobs=[job.model_dump(mode="json") for job in running],
            batches=call(calls.listing("batches")),
            waiting=waiting,
            at=time.time(),
            disk_problems=disk_problems(call(calls.listing("nodes"))),
            pools=call(calls.listing("pools")),
            machines=self._rented(),
        )

    def _rented(self) -> Sequence[Item]:
        """The rented machines; seldom, for they change seldom."""
        from gpuyard.client import machine_calls

        now = time.monotonic()
        if now >= self._next_machines_at:
            # First, so that a server which fails holds up one look alone.
            self._next_machines_at = now + _MACHINES_EVERY_S
            with suppress(GpuyardError):
                found = self._client.call(machine_calls.rented_machines())
                self._machines = found["items"]
        return self._machines


def _print(seen: Seen) -> None:
    say(f"GPUYARD {datetime.fromtimestamp(seen.at).astimezone():%Y-%m-%d %H:%M:%S}")
    print_table(
        COLUMNS,
        [row.cells for row in rows(seen)],
        empty="No GPUs here, and no job is running.",
    )
    say("\n".join(foot(seen)))


def _screen(client: "Client") -> None:
    try:
        from gpuyard.cli.screen import Top
    except ImportError:
        raise InvalidInputError.of(
            "top",
            "needs Textual",
            "pip install 'gpuyard[top]', or `gpuyard top --once`",
        ) from None

    def act(action: str, target: Any) -> str:
        from gpuyard.client import calls

        if action == "cancel":
            client.call(calls.cancel(target))
        elif action == "unload":
            client.call(calls.tend_model(target, "unload"))
        else:
            client.call(calls.tend_gpu(target, action))
        return f"{action}: {target}"

    Top(Looker(client).look, act).run()
