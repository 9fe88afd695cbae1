"""Starts the server of a home again after it was killed, for the keeper.

Only the standard library, as `keeper.py` says.
"""

import fcntl
import hashlib
import json
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

from gpuyard.node.keeper_files import KeeperLog

# See `config/private_environment.py`.
PRIVATE_FD = "GPUYARD_PRIVATE_FD"
# What a server's settings in its environment begin with, and what is not one's own.
_SETTINGS = (
    "GPUYARD_CONFIG",
    "GPUYARD_SERVER__",
    "GPUYARD_NODE__",
    "GPUYARD_SCHEDULER__",
    "GPUYARD_RESIDENCY__",
    "GPUYARD_KEEPER",
)
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 60.0


class ServerRestarts:
    """Starts the server of a home again when it was killed.

    A running server says in `server.json` how to start it: `restart`, with the command
    and with `environment`, its settings. A service manager looks after a server that
    says nothing.
    """

    def __init__(self, home: Path, log: KeeperLog) -> None:
        self._home = home
        self._log = log
        self._pause_s = _FIRST_PAUSE_S
        self._start_at = 0.0
        self.pid: int | None = None

    def check(self) -> None:
        """Start it if it was killed. One that fails again and again is started after
        growing pauses.
        """
        if self.pid is not None:
            return
        if _is_held(self._home / "server.lock"):
            self._pause_s = _FIRST_PAUSE_S
            self._start_at = 0.0
            return
        restart = self._restart()
        if restart is None or time.monotonic() < self._start_at:
            return
        if restart["keys"] != _digest_of_keys():
            # It would reach another ledger, or no bucket. A command starts it.
            self._log.write("server not started: it had other keys than this keeper")
            self._start_at = math.inf
            return
        self._start(restart["command"], restart["environment"])

    def _restart(self) -> dict[str, Any] | None:
        try:
            announced = json.loads((self._home / "server.json").read_text())
            return announced.get("restart")
        except (OSError, ValueError, AttributeError):
            return None

    def _start(self, command: list[str], settings: dict[str, str]) -> None:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_SETTINGS)
        }
        output = str(self._home / "logs" / "server.log")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._start_at = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        try:
            self.pid = os.posix_spawn(
                command[0],
                command,
                {**environment, **settings},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 1, output, flags, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
            )
            self._log.write(f"the server was killed: started again as {self.pid}")
        except OSError as error:
            self._log.write(f"server not started: {error}")

    def ended(self) -> None:
        """The server that was started here has ended."""
        self._log.write(f"server {self.pid} ended")
        self.pid = None


def _is_held(path: Path) -> bool:
    """True when a process holds the lock file; see `config/locks.py`."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _digest_of_keys() -> str:
    """See `config/private_environment.py`: of the keys that the agents get."""
    number = os.environ.get(PRIVATE_FD)
    private: dict[str, str] = {}
    if number is not None:
        file = int(number)
        private = json.loads(os.pread(file, os.fstat(file).st_size, 0))
    content = json.dumps(private, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()
