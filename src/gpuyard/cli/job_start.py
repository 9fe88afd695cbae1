"""Waits until a job has started, for commands that need it to run."""

import time
from typing import TYPE_CHECKING

from gpuyard.cli.output import say
from gpuyard.domain.errors import RefusedError

if TYPE_CHECKING:
    from gpuyard.client.sync_job import JobHandle

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_TELL_AFTER_S = 1.0


def wait_until_started(job: "JobHandle") -> None:
    """Wait until the job runs; say so if that takes longer. RefusedError if it ends
    before that.
    """
    pause_s = _FIRST_PAUSE_S
    told = False
    while (state := job.refresh().state) in ("queued", "assigned"):
        if not told and pause_s > _TELL_AFTER_S:
            name = job.info.name or job.id
            say(f"{name} waits: `gpuyard why {name}` says for what")
            told = True
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
    if state.terminal:
        reason = job.info.reason or state
        raise RefusedError(f"{job.id} is over ({reason}).", f"gpuyard logs {job.id}")
