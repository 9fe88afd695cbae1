"""`gpuyard top`: every GPU at a glance, live, with keys that act on the one that is
chosen.
"""

import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.dashboard import COLUMNS, Seen, disk_problems, foot, rows
from gpuyard.cli.output import print_json, print_table, say
from gpuyard.cli.session import connect
from gpuyard.domain.errors import InvalidInputError

if TYPE_CHECKING:
    from gpuyard.client.sync import Client


_MOST_JOBS = 200


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
    them the running jobs that use no GPU.

    Keys are named below the table.
    """
    with connect() as client:
        if as_json:
            seen = look(client)
            print_json(
                {
                    "gpus": seen.gpus,
                    "jobs": seen.jobs,
                    "batches": seen.batches,
                    "waiting": seen.waiting,
                    "disk_problems": seen.disk_problems,
                }
            )
        elif once or not sys.stdout.isatty():
            _print(look(client))
        else:
            _screen(client)


def look(client: "Client") -> Seen:
    """Ask the server."""
    from gpuyard.client import calls

    waiting = {
        queue["name"]: queue["waiting"]
        for queue in client.call(calls.listing("queues"))
    }
    gpus = client.call(calls.listing("gpus"))
    batches = client.call(calls.listing("batches"))
    running, _ = client.call(calls.jobs({"state": ["running"], "limit": _MOST_JOBS}))
    jobs = [job.model_dump(mode="json") for job in running]
    problems = disk_problems(client.call(calls.listing("nodes")))
    return Seen(gpus, jobs, batches, waiting, time.time(), problems)


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

    Top(lambda: look(client), act).run()
