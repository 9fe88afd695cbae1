"""Reading server-sent events."""

import json
from typing import Any


class EventReader:
    """Lines in, events out; `last_id` is what to send as `Last-Event-ID` to go on after a broken connection."""

    def __init__(self) -> None:
        self._data: list[str] = []
        self.last_id: str | None = None

    def feed(self, line: str) -> dict[str, Any] | None:
        """One line without its end; returns an event when the line completes one."""
        if not line:
            data, self._data = "\n".join(self._data), []
            return json.loads(data) if data else None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "id":
            self.last_id = value
        return None
