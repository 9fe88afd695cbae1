"""The program of an attempt: starts it, asks it to save, and ends it."""

import errno
import os
import signal
import subprocess
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

from .files import made, state_of, write
from .processes import descendants, outlives, reap_children, signal_number
from .seen_processes import SeenProcesses

_TERM_GRACE_S = 10.0
# Without a warning, the job is stopped this long before the limit, plus the grace.
_WARNING_S = 60.0
_LOOK_S = 1.0
PROGRAM = "program.json"
"""Which process the program is, for commands that are run beside it."""
# The first runner writes this file when the shares shall save: a signal by srun would
# also reach processes that it ends.
_SAVE = "save.json"
# A job's own environment must not set the first; the array of the second is gpuyard's,
# not the program's.
_OURS = ("GPUYARD_", "SLURM_ARRAY_")


class RunningProgram:
    """The process of one attempt and everything it starts."""

    def __init__(
        self,
        order: Dict[str, Any],
        log: Optional[int],
        began: Optional[float] = None,
    ) -> None:
        self.order = order
        self.checkpoint: Dict[str, Any] = order["checkpoint"]
        self.stop_reason = ""
        self._log = log
        self._grace_s = float(order.get("grace_s") or 0.0)
        self._process: "Optional[subprocess.Popen[bytes]]" = None
        self._kill_at: Optional[float] = None
        self._term_at: Optional[float] = None
        self._began = time.monotonic() if began is None else began
        self._saved_at = time.monotonic()
        self._look_at = self._began
        self._asked_at: Optional[Tuple[float, int]] = None
        self._folder = Path()
        self._seen: "Optional[SeenProcesses]" = None

    def start(self, folder: Path) -> None:
        """Start it; OSError when that fails."""
        self._folder = folder
        stdin: Any = subprocess.DEVNULL
        if self.order.get("stdin"):
            stdin = (folder / "stdin").open("rb")
        workdir = self.order.get("workdir") or str(made(folder / "work"))
        if not os.path.isdir(workdir):
            raise NotADirectoryError(errno.ENOTDIR, "there is no such folder", workdir)
        self._process = subprocess.Popen(
            self.order["command"],
            cwd=workdir,
            env=_environment(self.order),
            stdin=stdin,
            stdout=self._log,
            stderr=subprocess.STDOUT if self._log is not None else None,
            start_new_session=True,
            preexec_fn=partial(signal.pthread_sigmask, signal.SIG_SETMASK, []),
        )
        if self._log is not None:
            write(folder / PROGRAM, {"pid": self._process.pid, "workdir": workdir})
            self._seen = SeenProcesses(folder, self._process.pid)

    def has_ended(self) -> bool:
        """True once it has ended. Reaps its orphaned children."""
        assert self._process is not None
        ended = self._process.poll() is not None
        reap_children(but=self._process.pid)
        return ended

    @property
    def code(self) -> int:
        """Its exit code, or the negative number of the signal that ended it."""
        assert self._process is not None
        return self._process.returncode

    def stop(self, reason: str, may_save: bool = True) -> None:
        """End it: checkpoint signal and grace, TERM, KILL. A second call is ignored."""
        if self.stop_reason:
            return
        self.stop_reason = reason
        self._term_at = time.monotonic()
        name = self.checkpoint.get("signal")
        if may_save and name:
            self.send(signal_number(name))
            self._term_at += self._grace_s

    def ask_to_save(self) -> None:
        """Ask each share, or else each process that the signal would not end."""
        if self._leads_shares():
            write(self._folder / _SAVE, {"at": time.time()})
            return
        assert self._process is not None
        number = signal_number(self.checkpoint["signal"])
        pid = self._process.pid
        for each in [pid, *descendants(pid)]:
            if outlives(each, number):
                with suppress(OSError):
                    os.kill(each, number)

    def run_again(self) -> "Optional[RunningProgram]":
        """The same program once more, with its times from the first run on. None when
        it has not failed by itself, or cannot be started any more.
        """
        if self.code == 0 or self.stop_reason:
            return None
        again = RunningProgram(self.order, self._log, self._began)
        try:
            again.start(self._folder)
        except OSError:
            return None
        return again

    def ran_s(self) -> float:
        """For how many seconds it has run, whatever becomes of the wall clock."""
        return time.monotonic() - self._began

    def _leads_shares(self) -> bool:
        return bool(self.order["share"] != self.order["command"])

    def must_save(self) -> bool:
        """In a share: True once after each time that the first runner asks."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + _LOOK_S
        asked_at = state_of(self._folder / _SAVE)
        is_new = asked_at is not None and asked_at != self._asked_at
        self._asked_at = asked_at
        return is_new

    def tick(self) -> None:
        """Do what is due: end it at its timeout, ask it to save, send TERM or KILL."""
        if self._seen:
            self._seen.look()
        now = time.monotonic()
        timeout_s = self.order.get("timeout_s")
        every_s = self.checkpoint.get("every_s")
        name = self.checkpoint.get("signal")
        if timeout_s and now - self._began >= timeout_s:
            self.stop("timed_out")
        save_due = every_s and now - self._saved_at >= every_s
        if name and save_due and not self.stop_reason:
            self._saved_at = now
            self.ask_to_save()
        if self._term_at is not None and now >= self._term_at:
            self.send(signal.SIGTERM)
            self._term_at = None
            self._kill_at = now + min(self._grace_s, _TERM_GRACE_S)
        if self._kill_at is not None and now >= self._kill_at:
            self.kill()

    def is_near_limit(self, lead_s: float) -> bool:
        """True in the last `lead_s` seconds, plus the grace, before `limit_s`."""
        limit_s = self.order.get("limit_s")
        if not limit_s:
            return False
        return time.monotonic() - self._began >= limit_s - self._grace_s - lead_s

    def must_stop(self, folder: Path) -> bool:
        """With `watch`: True once `stop.json` is there, or the limit is near."""
        now = time.monotonic()
        if not self.order.get("watch") or self.stop_reason or now < self._look_at:
            return False
        self._look_at = now + _LOOK_S
        can_save = bool(self.checkpoint.get("signal"))
        if can_save and self.is_near_limit(_WARNING_S):
            return True
        return (folder / "stop.json").exists()

    def kill(self) -> None:
        """End it and all that it started."""
        self.send(signal.SIGKILL)
        for pid in descendants(os.getpid()):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def send(self, number: int) -> None:
        """Send a signal to its process group."""
        assert self._process is not None
        with suppress(OSError):
            os.killpg(self._process.pid, number)


def _environment(order: Dict[str, Any]) -> Dict[str, str]:
    found = {
        name: value for name, value in os.environ.items() if not name.startswith(_OURS)
    }
    found.update(PYTHONUNBUFFERED="1", COLUMNS="200")
    found.update(order.get("environment") or {})
    found.update(order.get("ids") or {})
    if not order.get("gpus"):
        found.update(CUDA_VISIBLE_DEVICES="", ROCR_VISIBLE_DEVICES="")
    elif "CUDA_VISIBLE_DEVICES" in os.environ:
        found["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
    return found
