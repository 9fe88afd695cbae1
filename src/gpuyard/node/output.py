"""Reads an attempt's log as it grows, and turns new lines into progress and points of
metrics.
"""

import time
from collections import deque
from dataclasses import asdict
from typing import Any

import structlog

from gpuyard.domain import wire
from gpuyard.insight.progress import MetricPoint, ProgressReader
from gpuyard.insight.scalar_files import LoggedScalars
from gpuyard.storage.logfile import LogFile

_CHUNK = 1 << 18
# The most that is read at once, so that one job with much output cannot starve the
# agent.
_MAX_BYTES = 8 << 20
# So many times with a size, or a step, are remembered.
_TIMES = 10_000
log = structlog.get_logger(__name__)


class OutputFollower:
    """Reads one log, each time from where it stopped.

    A log that is read again from its start gives the same points.

    `note_size` says how long the log was at a time. Then `step_at` knows which step was
    printed last at that time, also when much more was printed before the log is read.
    """

    def __init__(self, attempt_id: str, log: LogFile) -> None:
        self._attempt_id = attempt_id
        self._log = log
        self._reader = ProgressReader()
        self._offset = 0
        self._reported: dict[str, Any] = {}
        self._reported_words: tuple[str | None, str | None] = (None, None)
        # Times (UTC seconds) with the size of the log, not read so far, and with the
        # step at that size.
        self._sizes: deque[tuple[float, int]] = deque()
        self._steps: deque[tuple[float, int | None]] = deque(maxlen=_TIMES)
        self._last_size = 0
        self._logged: deque[LoggedScalars] = deque()
        self._last_logged = LoggedScalars()

    @property
    def fault(self) -> str | None:
        """The reason for a failure that the output shows: `gpu_out_of_memory`, say."""
        return self._reader.fault

    @property
    def step(self) -> int | None:
        """The last step in the output."""
        return self._reader.progress.step

    def note_size(self, size: int, at: float) -> None:
        """The log has `size` bytes at the time `at` (UTC seconds)."""
        if size != self._last_size and len(self._sizes) < _TIMES:
            self._last_size = size
            self._sizes.append((at, size))

    def add_logged(self, found: LoggedScalars) -> None:
        """The program has logged scalars to a file; `read_progress` reports them."""
        self._logged.append(found)

    def step_at(self, at: float) -> int | None:
        """The last step that was printed before the time `at` (UTC seconds), or until a
        size was noted next; the last one of all if none was. Call `read_progress`
        before.

        A program often prints a step and saves at once, so what was printed in the same
        moment counts.
        """
        # A copy: another thread may read the log and add to it meanwhile.
        steps = self._steps.copy()
        return next((step for seen, step in steps if seen >= at), self.step)

    def read_progress(self, *, last: bool = False) -> wire.ProgressSeen | None:
        """Read what is new; None when it shows nothing. `last`: the log is complete."""
        points = self._read(16 * _MAX_BYTES if last else _MAX_BYTES)
        if last:
            points += [_on_wire(point) for point in self._reader.finish(time.time())]
        points += self._logged_points()
        progress = self._last_logged.beside(asdict(self._reader.progress))
        words = (self._reader.no_gpu, self._reader.not_finite)
        nothing_new = progress == self._reported or not any(progress.values())
        if nothing_new and not points and words == self._reported_words:
            return None
        self._reported = progress
        self._reported_words = words
        return wire.ProgressSeen(self._attempt_id, progress, points, *words)

    def _logged_points(self) -> list[wire.SeriesPoint]:
        points: list[wire.SeriesPoint] = []
        while self._logged:
            self._last_logged = self._logged.popleft()
            points += self._last_logged.points
        return points

    def _read(self, budget: int) -> list[wire.SeriesPoint]:
        points: list[wire.SeriesPoint] = []
        # One time for all lines: a backlog must not look like a burst of speed.
        now = time.time()
        while budget > 0:
            try:
                offset, data = self._log.read(self._offset, self._next_length())
            except OSError:
                break
            if not data:
                break
            self._offset = offset + len(data)
            budget -= len(data)
            points += self._points_of(data, now)
        return points

    def _points_of(self, data: bytes, now: float) -> list[wire.SeriesPoint]:
        """What the reader finds. Output is anything: a fault of the reader must not
        reach the job.
        """
        try:
            return [_on_wire(point) for point in self._reader.feed(data, now)]
        except Exception:
            log.exception("output could not be read", attempt=self._attempt_id)
            return []

    def _next_length(self) -> int:
        """How much to read at once: up to the next size that was noted."""
        while self._sizes and self._sizes[0][1] <= self._offset:
            at, _ = self._sizes.popleft()
            self._steps.append((at, self.step))
        if not self._sizes:
            return _CHUNK
        return min(self._sizes[0][1] - self._offset, _CHUNK)


def _on_wire(point: MetricPoint) -> wire.SeriesPoint:
    return wire.SeriesPoint(point.name, point.n, point.step, point.value, point.at)
