"""Reading server-sent events."""

import json
from typing import Any

from gpuyard.client.lines import LineReader


class EventReader:
    """Parts of the stream in, events out; `last_id` is the number after which a further
    stream goes on.
    """

    def __init__(self, last_id: int | None = None) -> None:
        self.last_id = last_id
        self._lines = LineReader()
        self._data: list[str] = []

    def begin(self) -> None:
        """A new stream begins: what is left of the one before is no whole event."""
        self._lines = LineReader()
        self._data = []

    def feed(self, part: bytes) -> list[dict[str, Any]]:
        """The events that `part` completes."""
        return [
            event
            for line in self._lines.feed(part)
            if (event := self._line(line)) is not None
        ]

    def _line(self, line: str) -> dict[str, Any] | None:
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "data":
                self._data.append(value)
            elif name == "id":
                self.last_id = int(value)
            return None
        data = "\n".join(self._data)
        self._data = []
        return json.loads(data) if data else None
