"""What commands do with an array: follow it, show it, resume it, say why it waits."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from gpuyard.cli.follow import code_of, wants_cancel
from gpuyard.cli.output import (
    clock,
    money,
    print_fields,
    print_json,
    print_table,
    short_id,
    task_name,
)
from gpuyard.cli.shown_fields import spec_fields
from gpuyard.domain.errors import IsArrayError
from gpuyard.domain.units import shortened

if TYPE_CHECKING:
    from gpuyard.client.sync import Client
    from gpuyard.client.sync_arrays import ArrayHandle
    from gpuyard.client.sync_job import JobHandle
    from gpuyard.domain.arrays import Array
    from gpuyard.domain.jobs import JobOutcome

# How often a person sees how many are left.
_SHOW_S = 1.0
# How many tasks that need attention are shown with their array.
_SHOWN = 20
_NEEDS_ATTENTION = (
    "failed",
    "timed_out",
    "cancelled",
    "unknown",
    "running",
    "assigned",
)


def job_or_array(client: "Client", reference: str) -> "JobHandle | ArrayHandle":
    """What a person means."""
    try:
        return client.job(reference)
    except IsArrayError:
        return client.array(reference)


def follow_array(client: "Client", array: "ArrayHandle") -> int:
    """Wait until all its tasks are over, and say how many are in which state; returns
    the exit code of its first task that did not complete. Ctrl-C asks whether to detach
    or to cancel; with nobody to ask, it detaches.
    """
    try:
        ended = _until_over(client, array.id)
    except KeyboardInterrupt:
        may_ask = sys.stdout.isatty() and sys.stderr.isatty()
        if not (may_ask and wants_cancel(array.id)):
            return _detach(array)
        array.cancel()
        ended = _until_over(client, array.id)
    typer.echo(summary(array.refresh()), err=True)
    codes = [code_of(task.state, task.exit_code, task.signal) for task in ended]
    return next((code for code in codes if code), 0)


def _detach(array: "ArrayHandle") -> int:
    """Leave the array alone, and say so."""
    short = short_id(array.id)
    typer.echo(
        f"detached: {array.id} goes on; `gpuyard wait {short}` waits for it,"
        f" `gpuyard cancel {short}` ends it",
        err=True,
    )
    return 0


def _until_over(client: "Client", array_id: str) -> "list[JobOutcome]":
    from gpuyard.client import job_calls

    shows = sys.stderr.isatty()
    wait_s = _SHOW_S if shows else job_calls.LONGEST_WAIT_S
    while True:
        (ended, waiting) = client.call(job_calls.wait([array_id], wait_s))
        if shows:
            states = Counter(task.state for task in ended) + waiting
            line = f"{short_id(array_id)} {words_of(states)}"
            typer.echo(f"\r\x1b[K{line}", nl=not waiting, err=True)
        if not waiting:
            return ended


def words_of(counts: Mapping[Any, int]) -> str:
    """How many are in which state."""
    from gpuyard.domain.arrays import count_words

    return count_words(counts)


def summary(info: "Array") -> str:
    """One line about it."""
    line = f"{info.id} {info.state} · {words_of(info.counts)}"
    return f"{line} · {money(info.cost)}" if info.cost else line


def show_array(client: "Client", array: "ArrayHandle", *, as_json: bool) -> None:
    """Print everything about it, and its tasks that run or did not complete."""
    info = array.info
    if as_json:
        print_json(info)
        return
    at_most = info.at_most and f"{info.at_most} at once"
    print_fields(
        {
            "array": info.id,
            "name": info.name,
            "state": info.state,
            "tasks": f"{shortened(info.tasks)} ({info.total:,})",
            "limit": at_most,
            "so far": words_of(info.counts),
            **spec_fields(info.spec or {}),
            "labels": ", ".join(f"{k}={v}" for k, v in info.labels.items()),
            "priority": info.priority,
            "project": info.project,
            "user": info.user,
            "submitted": clock(info.created_at),
            "started": info.started_at and clock(info.started_at),
            "ended": info.ended_at and clock(info.ended_at),
            "cost": money(info.cost) if info.cost else "",
            "notes": "; ".join(info.warnings),
        }
    )
    _print_tasks(client, info)


def _print_tasks(client: "Client", info: "Array") -> None:
    rows: list[Sequence[Any]] = []
    for task in client.jobs(array=info.id, state=_NEEDS_ATTENTION, limit=_SHOWN):
        name = task_name(task.array_id, task.array_index)
        rows.append(
            (name, task.state, task.exit_code, task.reason, clock(task.started_at))
        )
        if len(rows) == _SHOWN:
            break
    if rows:
        typer.echo()
        print_table(("TASK", "STATE", "EXIT", "REASON", "STARTED"), rows, empty="")
    typer.echo(f"\n`gpuyard jobs --array {short_id(info.id)}` lists its tasks.")


def resume_array(
    client: "Client",
    array: "ArrayHandle",
    changes: Mapping[str, Any],
    *,
    detach: bool,
    as_json: bool,
) -> int:
    """Resume its tasks that did not complete, and follow it; the exit code."""
    info = array.resume(**changes)
    if as_json:
        print_json(info)
        return 0
    if detach:
        typer.echo(info.id)
        return 0
    return follow_array(client, array)


def tell_submitted(
    client: "Client",
    array: "ArrayHandle",
    notes: Sequence[str],
    *,
    detach: bool,
    as_json: bool,
) -> int:
    """Say what became of a submission, and follow it; the exit code."""
    for note in (*notes, *array.info.warnings):
        typer.echo(f"gpuyard: note: {note}", err=True)
    if as_json:
        print_json(array.info)
        return 0
    if detach:
        typer.echo(array.id)
        return 0
    return follow_array(client, array)
