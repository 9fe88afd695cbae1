"""Stopping an attempt's process: it is asked to save, then to end."""

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from gpuyard.domain import wire
from gpuyard.node.launcher import Process
from gpuyard.node.watch import AttemptWatch

# The file system's clock may be this far behind ours.
_CLOCK_STEP_NS = 10_000_000
# After TERM a cancelled job has this long (or its own grace, if shorter) before KILL.
CANCEL_GRACE_S = 10.0
TERM_GRACE_S = 10.0


async def stop_process(
    process: Process,
    start: wire.StartAttempt,
    exited: asyncio.Event,
    watch: AttemptWatch,
    *,
    scan_s: float,
    checkpoint: bool,
    cancelled: bool,
) -> None:
    """Send the checkpoint signal (with `checkpoint`) and TERM, each with its grace.

    Returns as soon as the process has `exited`, or when its grace is over. `scan_s` is
    the interval at which `watch` looks for checkpoints.
    """
    grace_s = start.grace_s
    if checkpoint and start.checkpoint_signal:
        asked_ns = time.time_ns() - _CLOCK_STEP_NS
        process.signal(signal_number(start.checkpoint_signal))
        await _wait(exited, grace_s, lambda: watch.newest_checkpoint_ns > asked_ns)
        # Some programs save more than one file: the next scans take those that follow.
        await _wait(exited, min(grace_s, 3 * scan_s))
        grace_s = TERM_GRACE_S
    process.signal(signal.SIGTERM)
    # A suspended process gets TERM only once it continues.
    process.signal(signal.SIGCONT)
    await _wait(exited, min(grace_s, CANCEL_GRACE_S) if cancelled else grace_s)


def signal_number(name: str) -> int:
    """The number of a signal, such as `USR1` or `SIGUSR1`."""
    return signal.Signals[f"SIG{name.removeprefix('SIG')}"]


async def _wait(
    exited: asyncio.Event, seconds: float, enough: Callable[[], bool] = lambda: False
) -> None:
    """Wait until the process has exited, it is `enough`, or the time has passed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not enough():
        with suppress(TimeoutError):
            await asyncio.wait_for(exited.wait(), 0.05)
        if exited.is_set():
            return


async def until_ended(process: Process) -> None:
    """Wait until the leader has ended. An adopted process that had ended before has no
    descriptor to wait for.
    """
    loop = asyncio.get_running_loop()
    try:
        descriptor = process.fileno()
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
