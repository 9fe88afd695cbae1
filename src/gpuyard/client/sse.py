"""Reading server-sent events."""

import json
from typing import Any

from gpuyard.client.lines import LineReader


class EventReader:
    """Parts of the stream in, events out."""

    def __init__(self) -> None:
        self._lines = LineReader()
        self._data: list[str] = []

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
            if name == "data":
                self._data.append(value.removeprefix(" "))
            return None
        data = "\n".join(self._data)
        self._data = []
        return json.loads(data) if data else None
