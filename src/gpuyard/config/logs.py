"""How gpuyard's own processes log: one line an event on stderr, which their starter sends to a file.

Tracebacks are plain: local variables could hold a job's secrets.
"""

import logging
import sys

import structlog


def configure_logging() -> None:
    """Set structlog up for a process of gpuyard."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
