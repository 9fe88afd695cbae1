"""Starts the agent, restarts it when it dies, and keeps the exit codes of the jobs that a dead agent leaves behind.

    python -I keeper.py --dir NODE_DIR -- AGENT [ARGUMENT…]

A stand-alone script of the standard library: it must not fail with the program it watches over. It is the subreaper of
its descendants, so that a job whose agent has died becomes its child; it writes how each ended to
`NODE_DIR/exits/PID-START.json` (START: clock ticks from boot to the process's start) before it reaps it. Records are
kept for a day. An agent that exits with 0 was asked to stop and is not started again; the keeper then hands its lock
on, so that a new one can start, and stays until the jobs it still has have ended. SIGTERM is passed to the agent, which
is not restarted whatever its exit code; a second one ends the keeper at once. Its log is `NODE_DIR/keeper.log`.

An agent that was stopped (SIGSTOP) and not woken, or whose `NODE_DIR/pulse` it touches no more, is killed, and a fresh
one adopts its jobs.
"""

import argparse
import ctypes
import fcntl
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0
_STABLE_S = 30.0  # an agent that has lived this long starts afresh with the first pause
_LOG_BYTES = 1_000_000
_KEEP_RECORDS_S = 86_400.0
_PRUNE_EVERY_S = 3_600.0
_RETRY_WRITE_S = 1.0
_LOCK_TRIES = 20
_WATCH_S = 2.0
# Looks, _WATCH_S apart: counted and not timed, so that a keeper which was stopped itself takes nobody for dead.
_STOPPED_LOOKS, _SILENT_LOOKS = 5, 30
_LOOKS, _LOOK_AGAIN_S = 10, 0.002
_ATTEMPT = b"GPUYARD_ATTEMPT_ID="
_SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT}


class Log:
    """Lines with their time, in a file that is moved to `keeper.log.1` when it is full."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, text: str) -> None:
        """Append a line. A full disk must not stop the keeper: then the line is lost."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with suppress(OSError):
            if self.path.exists() and self.path.stat().st_size > _LOG_BYTES:
                self.path.replace(self.path.with_suffix(".log.1"))
            with self.path.open("a") as file:
                file.write(f"{stamp} [{os.getpid()}] {text}\n")


class Exits:
    """The folder of exit records, `PID-START.json` each."""

    def __init__(self, folder: Path, log: Log) -> None:
        self._folder = folder
        self._log = log
        self._pruned_at = 0.0
        self._unwritten: dict[str, str] = {}

    @property
    def pending(self) -> bool:
        """Whether records wait for the disk to take them."""
        return bool(self._unwritten)

    def record(self, pid: int, start_ticks: int, code: int | None, signum: int | None, attempt: str) -> None:
        """Write down how a process ended; on a full disk, as soon as there is room."""
        content = {"pid": pid, "start_ticks": start_ticks, "code": code, "signal": signum, "at": time.time(),
                   "attempt": attempt}  # fmt: skip
        self._unwritten[f"{pid}-{start_ticks}.json"] = json.dumps(content)
        self.flush()

    def flush(self) -> None:
        """Write what is pending, each record whole or not at all, and at times remove what is old."""
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            for name, content in list(self._unwritten.items()):
                draft = self._folder / f"{name}.new"
                draft.write_text(content)
                draft.replace(self._folder / name)
                del self._unwritten[name]
            self._prune()
        except OSError as error:
            self._log.write(f"cannot write to {self._folder}, will try again: {error}")

    def _prune(self) -> None:
        now = time.time()
        if now - self._pruned_at < _PRUNE_EVERY_S:
            return
        self._pruned_at = now
        for file in self._folder.iterdir():
            if now - file.stat().st_mtime > _KEEP_RECORDS_S:
                file.unlink(missing_ok=True)


class Watch:
    """Whether an agent still works, looked at every `_WATCH_S`. A debugger may hold it for as long as it likes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._first = self._last = self._touched()
        self._stopped = self._silent = 0

    def _touched(self) -> int:
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return 0

    def fault(self, pid: int) -> str:
        """Why the agent has to go; empty while it may stay. One that never touched the file is not held to it."""
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        stopped = stat[stat.rindex(b")") + 2 :].startswith(b"T")
        self._stopped = self._stopped + 1 if stopped else 0
        touched = self._touched()
        self._silent = self._silent + 1 if touched == self._last != self._first else 0
        self._last = touched
        if self._stopped > _STOPPED_LOOKS:
            return "is stopped"
        return "no longer shows that it works" if self._silent > _SILENT_LOOKS else ""


class Keeper:
    """One agent, started again and again, and whatever it leaves behind."""

    def __init__(self, folder: Path, command: list[str], lock: int) -> None:
        self._command = command
        self._lock = lock
        self._log = Log(folder / "keeper.log")
        self._exits = Exits(folder / "exits", self._log)
        self._agent: int | None = None
        self._started_at = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self._start_at: float | None = time.monotonic()  # None: the agent runs, or is to run no more
        self._stopping = False
        self._watch = Watch(folder / "pulse")
        self._orphans: dict[int, str] = {}  # the attempts of the jobs that an agent left behind, by pid

    def run(self) -> None:
        """Return when the agent has stopped for good and no child is left, or at the second SIGTERM."""
        self._log.write(f"keeping {self._command}")
        while True:
            children_left = self._reap()
            if self._exits.pending:
                self._exits.flush()
            if self._stopping and self._agent is None:
                fcntl.flock(self._lock, fcntl.LOCK_UN)  # a new keeper may come
            if self._start_at is not None:
                if time.monotonic() >= self._start_at:
                    self._start()
            elif not children_left and not self._exits.pending:
                break
            received = self._wait()
            if not received and self._agent is not None and (fault := self._watch.fault(self._agent)):
                self._log.write(f"agent {self._agent} {fault}: killed")
                os.kill(self._agent, signal.SIGKILL)  # not yet reaped: the pid is the agent's
            if received in (signal.SIGTERM, signal.SIGINT) and not self._stop():
                break
        self._log.write("ends")

    def _start(self) -> None:
        self._start_at = None
        self._started_at = time.monotonic()
        try:
            self._agent = os.posix_spawnp(
                self._command[0],
                self._command,
                {**os.environ, "GPUYARD_KEEPER": str(os.getpid())},
                setpgroup=0,
                setsigmask=[],
                setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
            )
            self._watch = Watch(self._watch.path)
            self._log.write(f"agent {self._agent} started")
        except OSError as error:
            self._log.write(f"agent not started: {error}")
            self._plan_restart()

    def _plan_restart(self) -> None:
        if time.monotonic() - self._started_at >= _STABLE_S:
            self._pause_s = _FIRST_PAUSE_S
        self._start_at = time.monotonic() + self._pause_s
        self._log.write(f"agent starts again in {self._pause_s:g} s")
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _wait(self) -> int:
        """Sleep until a signal comes or something is due; the signal, 0 without one."""
        due = [] if self._start_at is None else [self._start_at - time.monotonic()]
        if self._exits.pending:
            due.append(_RETRY_WRITE_S)
        if self._agent is not None:
            due.append(_WATCH_S)
        received = signal.sigtimedwait(_SIGNALS, max(0.0, min(due))) if due else signal.sigwaitinfo(_SIGNALS)
        return received.si_signo if received else 0

    def _stop(self) -> bool:
        """Pass a SIGTERM on; False if this is not the first."""
        if self._stopping:
            self._log.write("second SIGTERM")
            return False
        self._finish("SIGTERM")
        if self._agent is not None:
            os.kill(self._agent, signal.SIGTERM)  # not yet reaped: the pid is the agent's
        return True

    def _finish(self, why: str) -> None:
        self._log.write(f"{why}: the agent is not started again")
        self._stopping = True
        self._start_at = None

    def _reap(self) -> bool:
        """Reap every child that has ended, those that matter after their record; False if there is no child left."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return False
            if ended is None:
                return True
            exited = ended.si_code == os.CLD_EXITED
            code, signum = (ended.si_status, None) if exited else (None, ended.si_status)
            attempt = self._orphans.pop(ended.si_pid, "")
            if ended.si_pid != self._agent:
                self._record(ended.si_pid, code, signum, attempt)
            os.waitid(os.P_PID, ended.si_pid, os.WEXITED)
            if ended.si_pid == self._agent:
                self._agent_ended(code, signum)

    def _record(self, pid: int, code: int | None, signum: int | None, attempt: str) -> None:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        fields = stat[stat.rindex(b")") + 2 :].split()
        session, start_ticks = int(fields[3]), int(fields[19])
        if session == pid:  # a job is the leader of its session; what a job leaves behind is of no account
            self._exits.record(pid, start_ticks, code, signum, attempt)

    def _learn_orphans(self) -> None:
        """Whose attempts the agent left behind: it may have died before it noted which process was which.

        A process it had only just made shows its own environment a moment later, once it executes its program.
        """
        for _ in range(_LOOKS):
            unknown = [pid for pid in _children() if pid not in self._orphans and not self._learn(pid)]
            if not unknown:
                return
            time.sleep(_LOOK_AGAIN_S)

    def _learn(self, pid: int) -> bool:
        """Note whose attempt the process is; False while that does not show."""
        with suppress(OSError):
            for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if entry.startswith(_ATTEMPT):
                    self._orphans[pid] = entry.removeprefix(_ATTEMPT).decode(errors="replace")
                    return True
        return False

    def _agent_ended(self, code: int | None, signum: int | None) -> None:
        self._log.write(f"agent {self._agent} ended: " + (f"signal {signum}" if code is None else f"exit code {code}"))
        self._agent = None
        self._learn_orphans()
        if code == 0 and not self._stopping:
            self._finish("exit code 0")
        if not self._stopping:
            self._plan_restart()


def _children() -> list[int]:
    """The pids of this process's children."""
    me = os.getpid()
    try:
        return [int(pid) for pid in Path(f"/proc/{me}/task/{me}/children").read_text().split()]
    except OSError:  # a kernel may be built without this file
        return []


def take_lock(path: Path) -> int | None:
    """Lock the file and write this process's pid to it; None if another keeper holds the lock."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(_LOCK_TRIES):  # whoever asks whether a keeper lives holds the lock for a moment in order to look
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(0.01)
    else:
        os.close(lock)
        return None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def detach() -> None:
    """Stand apart from whoever started this, and become the parent of all orphans below."""
    if os.getpgrp() != os.getpid():  # the leader of a process group cannot start a session
        os.setsid()
    for fd in (0, 1, 2):  # were one of them closed, the next file opened would take its place
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored, it would make exit codes vanish
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # they are waited for; ignoring SIGHUP would be inherited
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot become the subreaper of the jobs")


def main() -> int:
    """Run as the command line says; the exit code is 0 but for wrong use."""
    parser = argparse.ArgumentParser(description="Starts a gpuyard agent again when it dies and keeps its jobs' exits.")
    parser.add_argument("--dir", type=Path, required=True, help="the node's folder")
    parser.add_argument("command", nargs="+", help="the agent's command, after --")
    options = parser.parse_args()
    folder: Path = options.dir
    folder.mkdir(parents=True, exist_ok=True)
    lock = take_lock(folder / "keeper.lock")
    if lock is None:
        holder = (folder / "keeper.lock").read_text().strip()
        sys.stdout.write(f"keeper: process {holder or 'another'} already keeps {folder}\n")
        return 0
    detach()
    Keeper(folder, options.command, lock).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
