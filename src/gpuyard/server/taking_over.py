"""How a service gets its home when a server runs there already: one that a command has
started, because the service was not up yet, or was stopped.
"""

import json
import os
import signal
import time
from contextlib import suppress
from typing import IO, Any, cast

import structlog

from gpuyard.config.paths import Home
from gpuyard.domain.errors import LedgerLockedError
from gpuyard.ledger.store import lock_ledger

_LOOK_S = 0.1
_PATIENCE_S = 60.0
log = structlog.get_logger(__name__)


def take_over(home: Home) -> IO[str]:
    """The lock of the home, once a server that a command has started there has left;
    its jobs run on.

    LedgerLockedError when that does not leave, or another service manager runs it.
    """
    told = 0
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return lock_ledger(home.lock)
        except LedgerLockedError:
            server = _announced(home)
            if server.get("managed") or time.monotonic() > deadline:
                raise
        # It stops in order only once it serves, and says so then.
        pid = server.get("pid")
        if pid and pid != told and pid == _holder(home):
            log.info("taking over from the server of a command", pid=pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            told = pid
        time.sleep(_LOOK_S)


def _announced(home: Home) -> dict[str, Any]:
    """What the server that serves says of itself."""
    try:
        said = json.loads(home.server.read_text())
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", said) if isinstance(said, dict) else {}


def _holder(home: Home) -> int:
    """The process that holds the lock."""
    try:
        return int(home.lock.read_text())
    except (OSError, ValueError):
        return 0
