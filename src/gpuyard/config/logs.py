"""Logging of gpuyard's own processes: one line per event on stderr, which is redirected
to a file by whatever starts them.

Tracebacks show no local variables, which could hold a job's secrets.
"""

import io
import logging
import os
from contextlib import suppress
from typing import TextIO, cast

import structlog


class _Stderr(io.TextIOBase):
    """Stderr that never fails: on a full disk the log line is lost, but the work goes
    on.
    """

    def write(self, text: str, /) -> int:
        with suppress(OSError):
            os.write(2, text.encode(errors="replace"))
        return len(text)


def configure_logging() -> None:
    """Configure structlog for a process of gpuyard."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(
                colors=False, exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Stderr())),
        cache_logger_on_first_use=True,
    )
