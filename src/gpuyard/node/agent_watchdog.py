"""Notices an agent that is suspended or hangs, for the keeper.

Only the standard library, as `keeper.py` says.
"""

from pathlib import Path

WATCH_S = 2.0
# Checks, WATCH_S apart: counted and not timed, so that a keeper that was suspended
# itself does not kill a healthy agent.
_SUSPENDED_CHECKS = 5
_SILENT_CHECKS = 30


class AgentWatchdog:
    """Checks whether an agent still works, every `WATCH_S`.

    An agent that a debugger has stopped is left alone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._first_touch = self._touched()
        self._last_touch = self._first_touch
        self._suspended_checks = 0
        self._silent_checks = 0

    def _touched(self) -> int:
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return 0

    def fault(self, pid: int) -> str:
        """Why the agent must be killed; empty while it works.

        An agent that has never touched the file need not do so.
        """
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        suspended = stat[stat.rindex(b")") + 2 :].startswith(b"T")
        self._suspended_checks = self._suspended_checks + 1 if suspended else 0
        touched = self._touched()
        silent = touched == self._last_touch and touched != self._first_touch
        self._silent_checks = self._silent_checks + 1 if silent else 0
        self._last_touch = touched
        if self._suspended_checks > _SUSPENDED_CHECKS:
            return "is stopped"
        if self._silent_checks > _SILENT_CHECKS:
            return "no longer shows that it works"
        return ""
