"""Following an attempt's log: new bytes become progress and points, at most every so often."""

import time
from dataclasses import asdict
from typing import Any

from gpuyard.domain import wire
from gpuyard.insight.progress import Point, ProgressReader
from gpuyard.node.launcher import LogFile

_CHUNK = 1 << 18
# A job that writes faster than this is read at this pace, so that one loud job cannot starve the agent.
_MAX_PER_LOOK = 8 << 20


class OutputFollower:
    """Reads one log from where it stopped. A log read again from its start gives the same points."""

    def __init__(self, attempt_id: str, log: LogFile) -> None:
        self._attempt_id = attempt_id
        self._log = log
        self._reader = ProgressReader()
        self._offset = 0
        self._reported: dict[str, Any] = {}

    @property
    def fault(self) -> str | None:
        """What the output says went wrong, such as `gpu_out_of_memory`."""
        return self._reader.fault

    @property
    def step(self) -> int | None:
        """The step the output has come to."""
        return self._reader.progress.step

    def look(self, *, last: bool = False) -> wire.ProgressSeen | None:
        """Read what is new; None when it told nothing. `last`: the log is complete."""
        points = self._read(_MAX_PER_LOOK if not last else 16 * _MAX_PER_LOOK)
        if last:
            points += [_on_wire(point) for point in self._reader.finish(time.time())]
        progress = asdict(self._reader.progress)
        if not points and (progress == self._reported or not any(progress.values())):
            return None
        self._reported = progress
        return wire.ProgressSeen(self._attempt_id, progress, points)

    def _read(self, budget: int) -> list[wire.Point]:
        points: list[wire.Point] = []
        now = time.time()  # one time for all: a backlog read at once must not look like a burst of speed
        while budget > 0:
            try:
                offset, data = self._log.read(self._offset, _CHUNK)
            except OSError:
                break
            if not data:
                break
            self._offset = offset + len(data)
            budget -= len(data)
            points += [_on_wire(point) for point in self._reader.feed(data, now)]
        return points


def _on_wire(point: Point) -> wire.Point:
    return wire.Point(point.name, point.n, point.step, point.value, point.at)
