"""`gpuyard why`: why a job is not running."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import typer

from gpuyard.cli.arguments import AsJson, Reference
from gpuyard.cli.output import count, print_json, short_id
from gpuyard.cli.session import connect
from gpuyard.domain.errors import IsArrayError, NotFoundError
from gpuyard.domain.units import format_duration

if TYPE_CHECKING:
    from gpuyard.client.sync import Client

_JOB_ID = re.compile(r"job_[0-9a-f]{32}")
# It asks for the names of so many jobs.
_MOST_NAMED = 10


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(why)


def why(job: Reference, as_json: AsJson = False) -> None:
    """Say why a job is not running: what it waits for, what was rejected, what would
    help.
    """
    with connect() as client:
        answer = _why(client, job)
        if as_json:
            print_json(answer)
            return
        names = _names_of_jobs(client, json.dumps(answer))
    if answer.get("waiting"):
        typer.echo(f"{count(answer['waiting'], 'task')} of it wait; the first says:")
    typer.echo(_named(answer["summary"], names))
    if answer.get("deadline"):
        typer.echo(answer["deadline"])
    if answer["pending"]:
        _print_prospects(answer, names)


def _print_prospects(answer: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Say what stands before a pending job: the queue, each place, and the time."""
    if answer.get("position"):
        typer.echo(f"Position in the queue: {answer['position']}")
    for verdict in answer.get("candidates", []):
        typer.echo(f"  {verdict['name'] or verdict['node']}: {_reasons(verdict)}")
    if answer.get("would_help"):
        typer.echo("What would help:")
        for hint in answer["would_help"]:
            typer.echo(f"  - {_named(hint, names)}")
    typer.echo(f"Estimate: {_estimate(answer)}")


def _reasons(verdict: Mapping[str, Any]) -> str:
    """Why a place does not start it now, and what is expected there."""
    reasons = list(verdict["reasons"])
    if verdict["expects"]:
        reasons.append(verdict["expects"])
    return "; ".join(reasons) or "fits"


def _estimate(answer: Mapping[str, Any]) -> str:
    """When it may start, and what says so."""
    seconds = answer.get("estimate_s")
    basis = answer.get("estimate_basis")
    when = "unknown" if seconds is None else f"in {format_duration(seconds)}"
    return f"{when} ({basis})" if basis else when


def _why(client: "Client", reference: str) -> dict[str, Any]:
    """Why a job waits; of an array, why its first waiting task does."""
    from gpuyard.client import array_calls, calls

    try:
        return client.call(calls.why(reference))
    except IsArrayError:
        return client.call(array_calls.why(reference))


def _names_of_jobs(client: "Client", text: str) -> dict[str, str]:
    """The names of the first jobs whose ids stand in `text`, by id."""
    names: dict[str, str] = {}
    for job_id in sorted(set(_JOB_ID.findall(text)))[:_MOST_NAMED]:
        with suppress(NotFoundError):
            names[job_id] = client.job(job_id).info.name
    return names


def _named(text: str, names: Mapping[str, str]) -> str:
    """The text with names and short ids of jobs in place of their ids."""
    for job_id, name in names.items():
        text = text.replace(job_id, f"{name} ({short_id(job_id)})")
    return text
