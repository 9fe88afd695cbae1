"""Tells the owner of a job that its program found no GPU, because the job asked for
none.
"""

from dataclasses import replace

from gpuyard.controller.core import Core
from gpuyard.controller.job_warnings import warn
from gpuyard.domain.events import EventKind
from gpuyard.domain.printable import printable
from gpuyard.scheduler.attempts import LiveAttempt
from gpuyard.scheduler.refusal import impossible

_MOST_JOBS = 10_000


class CpuWatch:
    """Tells it once for each job; never where the job said that it wants none, or where
    there is no GPU that it could get.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._seen: set[str] = set()

    def found_no_gpu(self, attempt: LiveAttempt, words: str) -> None:
        """The program of an attempt printed `words`: it found no GPU."""
        job_id = attempt.job_id
        if job_id in self._seen:
            return
        if len(self._seen) >= _MOST_JOBS:
            self._seen.clear()
        self._seen.add(job_id)
        core = self._core
        live = core.view.jobs.get(job_id)
        if live is None or live.shape.gpus:
            return
        if impossible(core.view, replace(live.shape, gpus=1)) is not None:
            return
        spec = core.read_spec(core.queries.specs([job_id])[job_id])
        if spec.tier is not None or spec.resources.says_gpus:
            return
        shown = printable(words)
        warning = (
            f"its program found no GPU ({shown!r}): the job asked for none, see --gpus"
        )
        warn(core, attempt, warning, EventKind.JOB_ON_CPU, {"printed": shown})
