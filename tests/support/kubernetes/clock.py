"""The cluster's clock, which tests may shift."""

import time
from datetime import UTC, datetime


class Clock:
    """Wall time of the server. Durations are never taken from it."""

    def __init__(self) -> None:
        self.shift_s = 0.0

    def now(self) -> float:
        """UTC seconds."""
        return time.time() + self.shift_s

    def stamp(self, at: float | None = None) -> str:
        """`metav1.Time`: whole seconds, cut off."""
        return datetime.fromtimestamp(self.now() if at is None else at, UTC).strftime(
            "%Y-%m-%dT%H:%M:%SZ"
        )

    def micro(self) -> str:
        """`metav1.MicroTime`."""
        return datetime.fromtimestamp(self.now(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def seconds(stamp: str) -> float:
    """UTC seconds of an RFC 3339 time; ValueError where it is none."""
    return datetime.fromisoformat(stamp).timestamp()
