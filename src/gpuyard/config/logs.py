"""Logging of gpuyard's own processes: one line per event on stderr, which is redirected
to a file by whatever starts them. The file is rotated (`rotation.py`).

Tracebacks show no local variables, which could hold a job's secrets.
"""

import io
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO, cast

import structlog

from gpuyard.config.rotation import RotatedLog

_STDERR = 2


class _Stderr(io.TextIOBase):
    """Stderr that never fails: on a full disk the log line is lost, but the work goes
    on.
    """

    def __init__(self, log: RotatedLog | None) -> None:
        self._log = log

    def write(self, text: str, /) -> int:
        data = text.encode(errors="replace")
        with suppress(OSError):
            if self._log:
                self._log.write(data)
            else:
                os.write(_STDERR, data)
        return len(text)


def _one_event(_logger: object, _method: str, text: Any) -> str:
    """Text from elsewhere neither begins an event of its own nor steers a terminal."""
    lines: list[str] = text.split("\n")
    return "\n    ".join("".join(map(_visible, line)) for line in lines)


def _visible(character: str) -> str:
    if character.isprintable() or character == "\t":
        return character
    return character.encode("unicode_escape").decode()


def configure_logging(path: Path | None = None) -> None:
    """Configure structlog for a process of gpuyard.

    If stderr is the file `path`, that is rotated.
    """
    log = RotatedLog(path, _STDERR) if path else None
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(
                colors=False, exception_formatter=structlog.dev.plain_traceback
            ),
            _one_event,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Stderr(log))),
        cache_logger_on_first_use=True,
    )
