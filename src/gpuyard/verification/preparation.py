"""How far the preparation of a class has come, and how long it may still take."""

import math
from dataclasses import dataclass, field

from gpuyard.domain.units import format_duration
from gpuyard.verification.classes import TRAITS, Class


@dataclass(slots=True)
class PreparationProgress:
    """Words about a class that needs `count` samples, as its preparation goes on.

    `solve_s`: how long its trusted executor may take for one series. `began_at`:
    monotonic seconds.
    """

    cls: Class
    count: int
    solve_s: float
    began_at: float
    _first: int | None = None
    _told: tuple[int, int] | None = field(default=None)

    def words(self, series: int, ready: int, now: float) -> str:
        """What to say of this many series and samples; empty if nothing has changed.

        The first time it is the longest that it may take, later what is left by the
        pace so far.
        """
        if (series, ready) == self._told:
            return ""
        self._told = (series, ready)
        if self._first is None:
            self._first = series
        needed = TRAITS[self.cls].prompts
        if ready >= self.count:
            return f"class {self.cls}: {ready} samples are ready."
        done = f"class {self.cls}: {ready} of {self.count} samples are ready"
        if series < needed:
            done += f", {series} of {needed} series; these are made once"
        made = series - self._first
        if made <= 0:
            longest_s = self._tasks(series, ready) * self.solve_s
            return f"{done}. It takes {format_duration(longest_s)} at most."
        pace_s = (now - self.began_at) / made
        left_s = self._tasks(series, ready) * pace_s
        return f"{done}. About {format_duration(left_s)} are left."

    def _tasks(self, series: int, ready: int) -> int:
        """How many series the trusted executor has still to solve or to make."""
        size = TRAITS[self.cls].prompts
        workloads = math.ceil(max(0, self.count - ready) / size)
        return max(0, size - series) + workloads
