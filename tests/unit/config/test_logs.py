"""gpuyard's own log: what others say stays one event, and steers no terminal."""

import sys

from tests.support.programs import run_program

LOG = r"""
import structlog
from gpuyard.config.logs import configure_logging
configure_logging()
log = structlog.get_logger()
log.info("a host said", text="x\n2026-01-01T00:00:00Z [info     ] forged\r\x1b[2J")
try:
    raise ValueError("of a job\n2026-01-01T00:00:00Z [info     ] forged\x1b[2J")
except ValueError:
    log.exception("failed")
log.info("ümlaut")
"""


def test_text_from_elsewhere_begins_no_line_and_steers_no_terminal() -> None:
    done = run_program([sys.executable, "-c", LOG])
    begun = [line for line in done.stderr.splitlines() if not line.startswith(" ")]
    assert [line.split("] ")[1].split()[0] for line in begun] == [
        "a",
        "failed",
        "ümlaut",
    ]
    assert "\x1b" not in done.stderr
    assert "\r" not in done.stderr
