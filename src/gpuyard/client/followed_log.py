"""Reading the output of a job in lines of JSON, which say where each part stands."""

import json
from base64 import b64decode
from typing import Any

from gpuyard.client.calls import StreamCall, followed_log
from gpuyard.client.lines import LineReader
from gpuyard.domain.errors import GpuyardError


class LogReader:
    """Bytes of the answer in, parts of the output out.

    `position` (ATTEMPT:BYTE) is where a further request goes on, None while that is not
    known; `is_over` is true once the server has said that there is no more.
    """

    def __init__(self, reference: str, lines: int | None, attempt: int | None) -> None:
        self.position: str | None = None
        self.is_over = False
        self._reference = reference
        self._attempt = attempt
        self._last_lines = lines
        self._has_output = False
        self._lines = LineReader()

    def request(self) -> StreamCall:
        """Asks for the output, or for what has not come yet.

        A new answer begins with it: what is left of the one before is no whole line.
        """
        self._lines = LineReader()
        if self._has_output and self.position is None:
            # Where it was is not known; nothing is shown twice.
            self._last_lines = 0
        return followed_log(
            self._reference, self._last_lines, self._attempt, self.position
        )

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
        self._has_output = True
        offset = body["offset"]
        if offset is None:
            self.position = None
        else:
            self.position = f"{body['attempt']}:{offset + len(part)}"
        return part
