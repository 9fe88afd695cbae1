"""Notices a keeper that holds its lock and does not work: suspended, or hanging."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

# Checks: counted and not timed, so that a server that was suspended itself does not
# kill a healthy keeper.
SUSPENDED_CHECKS = 5
SILENT_CHECKS = 30
_RECORDING_S = 2.0
_LOOK_S = 0.05


class KeeperWatchdog:
    """Watches the keeper of a node's folder.

    A keeper touches `keeper.pulse` each time it looks around; one that never has (of
    an older version) need not. A keeper that a debugger has stopped is left alone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pid = 0
        self._first_touch = 0
        self._last_touch = 0
        self._suspended_checks = 0
        self._silent_checks = 0

    def check(self) -> str:
        """Look at the keeper; returns why it was killed, empty if it was not."""
        pid = keeper_of(self._folder)
        if pid != self._pid:
            self._start_over(pid)
        if not pid:
            return ""
        fault = self._fault(pid)
        if fault:
            self._kill(pid)
        return fault

    def _start_over(self, pid: int) -> None:
        self._pid = pid
        self._first_touch = self._touched()
        self._last_touch = self._first_touch
        self._suspended_checks = 0
        self._silent_checks = 0

    def _fault(self, pid: int) -> str:
        is_suspended = _state(pid) == "T"
        self._suspended_checks = self._suspended_checks + 1 if is_suspended else 0
        touched = self._touched()
        is_silent = touched == self._last_touch and touched != self._first_touch
        self._silent_checks = self._silent_checks + 1 if is_silent else 0
        self._last_touch = touched
        if self._suspended_checks > SUSPENDED_CHECKS:
            return "is stopped"
        if self._silent_checks > SILENT_CHECKS:
            return "no longer shows that it works"
        return ""

    def _touched(self) -> int:
        try:
            return (self._folder / "keeper.pulse").stat().st_mtime_ns
        except OSError:
            return 0

    def _kill(self, pid: int) -> None:
        """Kill it, after it has had the time to record the exits that it missed."""
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                if keeper_of(self._folder) == pid:
                    signal.pidfd_send_signal(descriptor, signal.SIGCONT)
                    self._wait_for_touch()
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            finally:
                os.close(descriptor)

    def _wait_for_touch(self) -> None:
        deadline = time.monotonic() + _RECORDING_S
        while self._touched() == self._last_touch and time.monotonic() < deadline:
            time.sleep(_LOOK_S)


def keeper_of(folder: Path) -> int:
    """The pid of the process that is the folder's keeper, 0 if there is none.

    The pid in the lock file may be another process's by now.
    """
    try:
        pid = int((folder / "keeper.lock").read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return 0
    is_keeper = any(word.endswith(b"/keeper.py") for word in words)
    return pid if is_keeper and os.fsencode(folder) in words else 0


def _state(pid: int) -> str:
    """The letter of the kernel for the state of a process, empty when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return stat[stat.rindex(")") + 2]
