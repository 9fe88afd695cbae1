"""Reading lines of a job's output page by page, whoever sends the requests."""

from typing import Any

from gpuyard.client.calls import Call, log_lines
from gpuyard.domain.errors import GpuyardError

# So long the server holds a request for lines that have not come yet.
_WAIT_S = 5.0
Line = dict[str, Any]


class LinesReader:
    """Answers in, lines out: send `call()` and `feed` the answer until `is_over`.

    With `tail`, the last lines come first, read from the end on, and then with `follow`
    what comes after them.
    """

    def __init__(
        self, reference: str, tail: int | None, follow: bool, wanted: dict[str, Any]
    ) -> None:
        self.is_over = False
        self._reference = reference
        self._wanted = {**wanted, "follow": follow or None}
        self._tail = tail
        self._last: list[Line] = []
        self._before: str | None = None
        self._after: str | None = None
        self._cursor: str | None = None

    def call(self) -> Call[tuple[list[Line], str | None, str | None]]:
        """Asks for the next page."""
        asked = dict(self._wanted)
        if self._tail is not None:
            asked |= {"tail": self._tail - len(self._last), "before": self._before}
        else:
            wait_s = _WAIT_S if asked["follow"] else None
            asked |= {"cursor": self._cursor, "wait_s": wait_s}
        return log_lines(self._reference, asked)

    def feed(self, answer: tuple[list[Line], str | None, str | None]) -> list[Line]:
        """The lines that this answer completes."""
        page, following, previous = answer
        if self._tail is None:
            self._check_progress(self._cursor, following)
            self._cursor = following
            self.is_over = following is None
            return page
        if self._before is None:
            self._after = following
        self._check_progress(self._before, previous)
        self._last[:0] = page
        self._before = previous
        if previous is not None and len(self._last) < self._tail:
            return []
        self._tail = None
        self._cursor = self._after
        self.is_over = self._after is None
        return self._last

    def _check_progress(self, before: str | None, after: str | None) -> None:
        """GpuyardError for a cursor that leads to the same page again; only who follows
        a log waits at one place.
        """
        is_waiting = self._tail is None and self._wanted["follow"]
        if after is not None and after == before and not is_waiting:
            raise GpuyardError(
                "The server sends the same page of the log again and again.",
                "Look at the whole log, with `gpuyard logs` and no condition.",
            )
