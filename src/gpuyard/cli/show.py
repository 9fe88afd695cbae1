"""`gpuyard show`: everything about one job, or about an array."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import typer

from gpuyard.cli.arguments import AsJson, Reference
from gpuyard.cli.arrays import job_or_array, show_array
from gpuyard.cli.output import clock, money, print_fields, print_json, print_table
from gpuyard.cli.session import connect
from gpuyard.cli.shown_fields import shown_fields

if TYPE_CHECKING:
    from gpuyard.client.sync import Client
    from gpuyard.client.sync_job import JobHandle
    from gpuyard.domain.jobs import Attempt, Job

_PENDING = ("queued", "assigned")
_NODE_ID = "node_"
_ATTEMPT_COLUMNS = (
    "ATTEMPT",
    "STATE",
    "NODE",
    "GPUS",
    "STARTED",
    "EXIT",
    "SIGNAL",
    "REASON",
    "COST",
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(show)


def show(job: Reference, as_json: AsJson = False) -> None:
    """Show everything about a job, or about an array."""
    from gpuyard.client.sync_job import JobHandle

    with connect() as client:
        found = job_or_array(client, job)
        if not isinstance(found, JobHandle):
            show_array(client, found, as_json=as_json)
            return
        info = found.info
        if as_json:
            print_json(info)
            return
        gpus = _gpus(client, info)
        nodes = _node_names(client, info)
        waits = _what_it_waits_for(found)
    print_fields(shown_fields(info, gpus, waits))
    if info.attempts:
        typer.echo()
        print_attempts(info.attempts, nodes)


def _gpus(client: "Client", info: "Job") -> list[str]:
    """The GPUs of its last attempt, by their names where gpuyard knows these."""
    if not info.gpus:
        return []
    names = {gpu["uuid"]: gpu["name"] for gpu in client.gpus()}
    return [f"{names[gpu]} ({gpu})" if gpu in names else gpu for gpu in info.gpus]


def _what_it_waits_for(job: "JobHandle") -> str:
    """What a pending job waits for; of any other, nothing."""
    if job.info.state not in _PENDING:
        return ""
    answer = job.why()
    return answer["summary"] if answer["pending"] else ""


def _node_names(client: "Client", info: "Job") -> dict[str, str]:
    """The names of the nodes of its attempts, by their ids."""
    ids = {attempt.node for attempt in info.attempts}
    if not any(node and node.startswith(_NODE_ID) for node in ids):
        return {}
    nodes: list[dict[str, str]] = client.nodes()
    return {node["id"]: node["name"] for node in nodes if node["id"] in ids}


def print_attempts(attempts: "Sequence[Attempt]", nodes: Mapping[str, str]) -> None:
    """A line for each, its message, and more about the last. `nodes`: their names, by
    their ids.
    """
    rows = [
        (
            attempt.number,
            attempt.state,
            attempt.node and nodes.get(attempt.node, attempt.node[-8:]),
            ", ".join(attempt.gpus),
            clock(attempt.started_at),
            attempt.exit_code,
            attempt.signal,
            attempt.reason,
            money(attempt.cost),
        )
        for attempt in attempts
    ]
    print_table(_ATTEMPT_COLUMNS, rows, empty="")
    *before, last = attempts
    print_fields({f"attempt {attempt.number}": attempt.message for attempt in before})
    limits = ", ".join(f"{name} by {how}" for name, how in last.limits.items())
    print_fields(
        {"limits": limits, "message": last.message, "resumed from": last.resumed_from}
    )
