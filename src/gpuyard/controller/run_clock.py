"""How long the running attempts have run."""

import time
from collections.abc import Callable


def _now() -> float:
    # Looked up at each call, so that a simulation can have a clock of its own.
    return time.monotonic()


class RunClock:
    """Measures by the monotonic clock of the server, from what the nodes measured.

    In memory only: after a restart the nodes say it again.
    """

    def __init__(self, clock: Callable[[], float] = _now) -> None:
        self._clock = clock
        self._began_at: dict[str, float] = {}

    def note(self, attempt_id: str, ran_s: float) -> None:
        """Note that the attempt has run for `ran_s` seconds until now."""
        self._began_at[attempt_id] = self._clock() - ran_s

    def ran_s(self, attempt_id: str) -> float | None:
        """For how many seconds the attempt has run; None if that is not known."""
        began_at = self._began_at.get(attempt_id)
        return None if began_at is None else self._clock() - began_at

    def forget(self, attempt_id: str) -> None:
        """The attempt has ended."""
        self._began_at.pop(attempt_id, None)
