"""Reading the output of a job in lines of JSON, which say where each part stands."""

import json
from base64 import b64decode
from typing import Any

from gpuyard.client.lines import LineReader
from gpuyard.domain.errors import GpuyardError


class LogReader:
    """Bytes of the answer in, parts of the output out.

    `position` (ATTEMPT:BYTE) is where a further request goes on, None while that is not
    known; `is_over` is true once the server has said that there is no more.
    """

    def __init__(self) -> None:
        self.position: str | None = None
        self.has_output = False
        self.is_over = False
        self._lines = LineReader()

    def begin(self) -> None:
        """A new answer begins: what is left of the one before is no whole line."""
        self._lines = LineReader()

    def feed(self, answer: bytes) -> list[bytes]:
        """The parts of the output that these bytes complete."""
        return [
            part for line in self._lines.feed(answer) if (part := self._part_of(line))
        ]

    def _part_of(self, line: str) -> bytes:
        try:
            body: dict[str, Any] = json.loads(line)
            return self._read(body)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise GpuyardError(
                "The server sends output in another form: it has another version.",
                "gpuyard down --running leave; gpuyard up",
            ) from error

    def _read(self, body: dict[str, Any]) -> bytes:
        if body.get("end"):
            self.is_over = True
            return b""
        if "data" not in body:
            return b""  # it says only that the server is there
        part = b64decode(body["data"])
        self.has_output = True
        offset = body["offset"]
        if offset is None:
            self.position = None
        else:
            self.position = f"{body['attempt']}:{offset + len(part)}"
        return part
