"""How long jobs have run, whatever becomes of the wall clock."""

import time
from collections.abc import Callable


class RunningTimes:
    """Measures by the monotonic clock.

    The wall clock counts only once for each job, when a provider first sees it running:
    for the time before. If the provider knew the job before it ran, that time cannot be
    longer than since then.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting_at: dict[str, float] = {}
        self._began_at: dict[str, float] = {}

    def note_waiting(self, job_id: str) -> None:
        """Note that the job does not run yet."""
        self._waiting_at[job_id] = self._clock()
        self._began_at.pop(job_id, None)

    def note_running(self, job_id: str, ran_s: float) -> None:
        """Note that the job has run for `ran_s` seconds until now."""
        self._began_at[job_id] = self._clock() - ran_s

    def ran_s(self, job_id: str, by_wall_clock_s: float) -> float:
        """Seconds since the job began to run; the wall clock says `by_wall_clock_s`."""
        now = self._clock()
        if job_id not in self._began_at:
            waiting_at = self._waiting_at.pop(job_id, float("-inf"))
            began_at = now - max(by_wall_clock_s, 0.0)
            self._began_at[job_id] = max(began_at, waiting_at)
        return now - self._began_at[job_id]

    def forget(self, job_id: str) -> None:
        """Drop what is known of a job."""
        self._waiting_at.pop(job_id, None)
        self._began_at.pop(job_id, None)
