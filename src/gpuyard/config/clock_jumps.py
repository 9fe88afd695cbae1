"""Notices that somebody has set the wall clock."""

import time

_JUMP_S = 3600.0


class ClockJumps:
    """Compares the wall clock with the monotonic one, which nobody can set.

    What is deleted by its age must not go because the wall clock is a year ahead for a
    moment.
    """

    def __init__(self) -> None:
        self._difference = _difference()

    def jumped(self) -> bool:
        """Whether the wall clock has been set by more than an hour since this was asked
        last, or since the start. A machine that slept looks like that, too.
        """
        before = self._difference
        self._difference = _difference()
        return abs(self._difference - before) > _JUMP_S


def _difference() -> float:
    return time.time() - time.monotonic()
