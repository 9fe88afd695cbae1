"""Following a job: its output as it comes, a live line under it on a terminal, and its
own exit code at the end.
"""

import sys
import threading
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from gpuyard.cli.output import (
    STATE_COLOURS,
    console,
    duration_of,
    money,
    progress_words,
    short_id,
)
from gpuyard.domain.errors import GpuyardError, UnreachableError
from gpuyard.domain.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.live import Live
    from rich.text import Text

    from gpuyard.cli.typed_input import JobInput, UnwantedInput
    from gpuyard.client.sync_job import JobHandle
    from gpuyard.domain.jobs import Job

GPUYARD_FAULT = 125
TIMED_OUT = 124
CANCELLED = 130
_LOOK_S = 0.5


def follow(
    job: "JobHandle",
    *,
    lines: int | None = None,
    interrupted: "Callable[[JobHandle], int] | None" = None,
    typed: "JobInput | UnwantedInput | None" = None,
) -> int:
    """Show the job's output until it is over; returns the exit code to leave with.

    Ctrl-C asks whether to detach or to cancel, or does what `interrupted` does, which
    returns the exit code then. `typed`: what becomes of this command's own input.
    """
    try:
        if not (sys.stdout.isatty() and sys.stderr.isatty()):
            # With nobody to ask, Ctrl-C detaches.
            return _plain(job, lines, detach, typed)
        ask = interrupted or _detach_or_cancel
        if typed and typed.is_dialogue:
            return _plain(job, lines, ask, typed)
        return _live(job, lines, ask, typed)
    except UnreachableError as error:
        on = (
            "A running job goes on without it; follow it again with `gpuyard logs -f"
            f" {short_id(job.id)}`."
        )
        raise UnreachableError(error.message, on) from None


def exit_code(job: "Job") -> int:
    """The exit code of a job that is over; see `code_of`."""
    last = job.attempts[-1] if job.attempts else None
    return code_of(job.state, job.exit_code, last and last.signal)


def code_of(state: str, code: int | None, signal: int | None) -> int:
    """The job's own exit code, 128 + n for signal n; 124, 130 and 125 as `docker` and
    `timeout` use them.
    """
    if state == "completed":
        return 0
    if state == "timed_out":
        return TIMED_OUT
    if state == "cancelled":
        return CANCELLED
    if code:
        return code
    return 128 + signal if signal else GPUYARD_FAULT


def _plain(
    job: "JobHandle",
    lines: int | None,
    interrupted: "Callable[[JobHandle], int]",
    typed: "JobInput | UnwantedInput | None",
) -> int:
    """Bytes as they are."""
    say = partial(typer.echo, err=True)
    try:
        with typed.passed_on(say) if typed else nullcontext():
            _copy(job, lines)
            done = job.wait()
    except KeyboardInterrupt:
        return interrupted(job)
    typer.echo(summary(done), err=True)
    return exit_code(done)


def _copy(job: "JobHandle", lines: int | None) -> None:
    for part in job.output(lines=lines):
        sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()


def _live(
    job: "JobHandle",
    lines: int | None,
    interrupted: "Callable[[JobHandle], int]",
    typed: "JobInput | UnwantedInput | None",
) -> int:
    from rich.live import Live

    over = threading.Event()
    screen = console()
    with Live(
        console=screen,
        refresh_per_second=8,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as live:
        watcher = threading.Thread(target=_watch, args=(job, live, over), daemon=True)
        watcher.start()
        try:
            with typed.passed_on(screen.print) if typed else nullcontext():
                for line in job.logs(lines=lines):
                    # A bar redraws itself with \r; the live line shows how far the job
                    # is, so only the last state counts.
                    screen.print(line.rstrip("\r").rsplit("\r", 1)[-1])
                done = job.wait()
        except KeyboardInterrupt:
            over.set()
            live.stop()
            return interrupted(job)
        finally:
            over.set()
    console(stderr=True).print(summary(done))
    return exit_code(done)


def _watch(job: "JobHandle", live: "Live", over: threading.Event) -> None:
    """Keep the live line true; a server that is away for a moment is no reason to
    stop.
    """
    while not over.is_set():
        with suppress(GpuyardError):
            live.update(live_line(job.peek()))
        over.wait(_LOOK_S)


def live_line(job: "Job") -> "Text":
    """State, step, loss, ETA, cost so far."""
    from rich.text import Text

    line = Text(f"{short_id(job.id)} ", style="dim")
    line.append(job.state.value, style=STATE_COLOURS.get(job.state.value, ""))
    words = [*progress_words(job.progress), duration_of(job), money(job.cost)]
    if job.checkpoints:
        words.append(f"{job.checkpoints} checkpoint{'s' * (job.checkpoints != 1)}")
    line.append(" · " + " · ".join(word for word in words if word != "-"))
    if job.state == "queued":
        line.append(f"  (why: gpuyard why {short_id(job.id)})", style="dim")
    return line


def summary(job: "Job") -> str:
    """One line for the end."""
    parts = [f"{job.id} {job.state}"]
    last = job.attempts[-1] if job.attempts else None
    if job.reason and job.reason != job.state:
        parts.append(_reason_words(job, last))
    parts += [
        word for word in progress_words(job.progress) if not word.startswith("ETA")
    ]
    parts += [f"{duration_of(job)}", money(job.cost)]
    if job.checkpoints:
        parts.append(f"{job.checkpoints} checkpoint{'s' * (job.checkpoints != 1)}")
    return " · ".join(part for part in parts if part != "-")


def _reason_words(job: "Job", last: Any) -> str:
    if job.reason == Reason.EXIT_CODE:
        return f"exit code {job.exit_code}"
    if job.reason == Reason.KILLED_BY_SIGNAL and last and last.signal:
        return f"killed by signal {last.signal}"
    words = (job.reason or "").replace("_", " ")
    if last and last.message:
        return f"{words}: {last.message}"
    return Reason.meaning_of(job.reason) or words


def detach(job: "JobHandle") -> int:
    """Leave the job alone, and say so."""
    typer.echo(
        f"detached: {job.id} goes on; follow it with `gpuyard logs -f"
        f" {short_id(job.id)}`",
        err=True,
    )
    return 0


def leave(_job: "JobHandle") -> int:
    """Only leave, as a mere viewer should."""
    return CANCELLED


def wants_cancel(job_id: str) -> bool:
    """Ask once whether to detach from a job or an array, or to cancel it; a second
    Ctrl-C detaches.
    """
    try:
        answer = typer.prompt(
            f"\nDetach from {short_id(job_id)} or cancel it? [d/c]",
            default="d",
            show_default=False,
        )
    except (KeyboardInterrupt, typer.Abort):
        return False
    return answer.strip().lower().startswith("c")


def _detach_or_cancel(job: "JobHandle") -> int:
    if not wants_cancel(job.id):
        return detach(job)
    job.cancel()
    done = job.wait()
    typer.echo(summary(done), err=True)
    return exit_code(done)
