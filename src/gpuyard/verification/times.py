"""The time of day, by a clock that nobody sets while we run: spans between two moments are true."""

import time

_BEGAN = time.time() - time.monotonic()


def now() -> float:
    """UTC seconds."""
    return at(time.monotonic())


def at(monotonic: float) -> float:
    """When that was, in UTC seconds."""
    return _BEGAN + monotonic
