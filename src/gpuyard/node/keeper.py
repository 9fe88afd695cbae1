"""Starts the agent, restarts it when it dies, and keeps the exit codes of the jobs that
a dead agent leaves behind.

    python -I keeper.py --dir NODE_DIR [--server HOME] -- AGENT [ARGUMENT…]

A stand-alone script of the standard library: it must not fail with the program that it
watches. It is the subreaper of its descendants, so a job whose agent has died becomes
its child. Before it reaps such a child, it writes how that ended to
`NODE_DIR/exits/PID-START.json` (START: clock ticks from boot to the process's start).
These records are kept for a day.

An agent that exits with 0 was told to leave and is not started again. The keeper then
releases its lock, so that a new keeper can start, and stays until the jobs that it
still has have ended. It passes SIGTERM to the agent and does not restart that, whatever
its exit code; a second SIGTERM ends the keeper at once. Its log is
`NODE_DIR/keeper.log`.

The keeper kills an agent that stays suspended (SIGSTOP) or no longer touches
`NODE_DIR/pulse`; a new agent adopts the jobs. In the same way the server watches the
keeper, which touches `NODE_DIR/keeper.pulse`.

With `--server`, it starts the server of that home again when it was killed, or the
kernel ended it: then its lock is free and `HOME/server.json`, which a server that ends
as it should removes, is still there.
"""

import argparse
import ctypes
import fcntl
import hashlib
import json
import math
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_DUMPABLE = 4
# See `config/private_environment.py`.
_PRIVATE_FD = "GPUYARD_PRIVATE_FD"
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
# After an agent that lived this long, the pauses start again with the first one.
_STABLE_S = 30.0
_LOG_BYTES = 1_000_000
_KEEP_RECORDS_S = 86_400.0
_PRUNE_EVERY_S = 3_600.0
_RETRY_WRITE_S = 1.0
_LOCK_TRIES = 20
_WATCH_S = 2.0
# Checks, _WATCH_S apart: counted and not timed, so that a keeper that was suspended
# itself does not kill a healthy agent.
_SUSPENDED_CHECKS = 5
_SILENT_CHECKS = 30
_ORPHAN_TRIES = 10
_ORPHAN_PAUSE_S = 0.002
# What a server's settings in its environment begin with, and what is not one's own.
_SETTINGS = (
    "GPUYARD_CONFIG",
    "GPUYARD_SERVER__",
    "GPUYARD_NODE__",
    "GPUYARD_SCHEDULER__",
    "GPUYARD_RESIDENCY__",
    "GPUYARD_KEEPER",
)
_LONGEST_SERVER_PAUSE_S = 60.0
_ATTEMPT = b"GPUYARD_ATTEMPT_ID="
# The kernel lets no program have a longer one. But a process may say that any part of
# its memory is its environment.
_MAX_ENVIRONMENT = 8 << 20
_LONGEST_ID = 200
_SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT}


class KeeperLog:
    """A log file with a time in each line; when it is full it is moved to
    `keeper.log.1`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, text: str) -> None:
        """Append a line. On a full disk the line is lost, because the keeper must go
        on.
        """
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with suppress(OSError):
            if self.path.exists() and self.path.stat().st_size > _LOG_BYTES:
                self.path.replace(self.path.with_suffix(".log.1"))
            with self.path.open("a") as file:
                file.write(f"{stamp} [{os.getpid()}] {text}\n")


class Exits:
    """The folder of exit records, `PID-START.json` each."""

    def __init__(self, folder: Path, log: KeeperLog) -> None:
        self._folder = folder
        self._log = log
        self._pruned_at = 0.0
        self._unwritten: dict[str, str] = {}

    @property
    def pending(self) -> bool:
        """True while records could not be written yet."""
        return bool(self._unwritten)

    def record(
        self,
        pid: int,
        start_ticks: int,
        code: int | None,
        signum: int | None,
        attempt: str,
        uid: int,
    ) -> None:
        """Record how a process of the user `uid` ended; on a full disk, as soon as
        there is room.
        """
        content = {
            "pid": pid,
            "start_ticks": start_ticks,
            "code": code,
            "signal": signum,
            "at": time.time(),
            "boot_s": time.clock_gettime(time.CLOCK_BOOTTIME),
            "attempt": attempt,
            "uid": uid,
        }
        self._unwritten[f"{pid}-{start_ticks}.json"] = json.dumps(content)
        self.flush()

    def flush(self) -> None:
        """Write the pending records, each whole or not at all, and now and then remove
        old ones.
        """
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


class AgentWatchdog:
    """Checks whether an agent still works, every `_WATCH_S`.

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

    def _restart(self) -> "dict[str, Any] | None":
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
        self._pause_s = min(2 * self._pause_s, _LONGEST_SERVER_PAUSE_S)
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


class Keeper:
    """Keeps one agent running, and the jobs that it leaves behind."""

    def __init__(
        self, folder: Path, command: list[str], lock: int, home: Path | None = None
    ) -> None:
        self._command = command
        self._lock = lock
        self._log = KeeperLog(folder / "keeper.log")
        self._server = ServerRestarts(home, self._log) if home else None
        self._exits = Exits(folder / "exits", self._log)
        self._agent: int | None = None
        self._started_at = 0.0
        self._pause_s = _FIRST_PAUSE_S
        # None: the agent runs, or is not to be started again.
        self._start_at: float | None = time.monotonic()
        self._stopping = False
        self._watch = AgentWatchdog(folder / "pulse")
        self._pulse = folder / "keeper.pulse"
        # The attempts of the jobs that an agent left behind, by pid.
        self._orphans: dict[int, str] = {}

    def run(self) -> None:
        """Run until the agent has stopped for good and no child is left, or until the
        second SIGTERM.
        """
        self._log.write(f"keeping {self._command}")
        while True:
            children_left = self._reap()
            if self._exits.pending:
                self._exits.flush()
            with suppress(OSError):
                self._pulse.touch()
            if self._stopping and self._agent is None:
                fcntl.flock(self._lock, fcntl.LOCK_UN)  # for a new keeper
            if self._start_at is not None:
                if time.monotonic() >= self._start_at:
                    self._start()
            elif not children_left and not self._exits.pending:
                break
            received = self._wait()
            if not received:
                self._kill_broken_agent()
            if self._server and not self._stopping:
                self._server.check()
            if received in (signal.SIGTERM, signal.SIGINT) and not self._stop():
                break
        self._log.write("ends")

    def _kill_broken_agent(self) -> None:
        if self._agent is None:
            return
        fault = self._watch.fault(self._agent)
        if fault:
            self._log.write(f"agent {self._agent} {fault}: killed")
            # It is not reaped yet, so the pid is still the agent's.
            os.kill(self._agent, signal.SIGKILL)

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
            self._watch = AgentWatchdog(self._watch.path)
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
        """Sleep until a signal comes or something is due; returns the signal, or 0."""
        due = [] if self._start_at is None else [self._start_at - time.monotonic()]
        if self._exits.pending:
            due.append(_RETRY_WRITE_S)
        if self._agent is not None:
            due.append(_WATCH_S)
        if due:
            received = signal.sigtimedwait(_SIGNALS, max(0.0, min(due)))
        else:
            received = signal.sigwaitinfo(_SIGNALS)
        return received.si_signo if received else 0

    def _stop(self) -> bool:
        """Pass SIGTERM to the agent; False if this is the second one."""
        if self._stopping:
            self._log.write("second SIGTERM")
            return False
        self._finish("SIGTERM")
        if self._agent is not None:
            # It is not reaped yet, so the pid is still the agent's.
            os.kill(self._agent, signal.SIGTERM)
        return True

    def _finish(self, why: str) -> None:
        self._log.write(f"{why}: the agent is not started again")
        self._stopping = True
        self._start_at = None

    def _reap(self) -> bool:
        """Reap every child that has ended, after it is recorded; False when no child is
        left.
        """
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return False
            if ended is None:
                return self._jobs_left()
            code = signum = None
            if ended.si_code == os.CLD_EXITED:
                code = ended.si_status
            else:
                signum = ended.si_status
            attempt = self._orphans.pop(ended.si_pid, "")
            is_server = self._server is not None and ended.si_pid == self._server.pid
            if ended.si_pid != self._agent and not is_server:
                self._record(ended.si_pid, code, signum, attempt)
            os.waitid(os.P_PID, ended.si_pid, os.WEXITED)
            if ended.si_pid == self._agent:
                self._agent_ended(code, signum)
            if self._server and is_server:
                self._server.ended()

    def _jobs_left(self) -> bool:
        """True while there is a child; a server that was started here needs nobody."""
        server = self._server.pid if self._server else None
        return server is None or _children() != [server]

    def _record(
        self, pid: int, code: int | None, signum: int | None, attempt: str
    ) -> None:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        fields = stat[stat.rindex(b")") + 2 :].split()
        session = int(fields[3])
        start_ticks = int(fields[19])
        # A job leads its session. How its own children ended does not matter.
        if session == pid:
            uid = Path(f"/proc/{pid}").stat().st_uid
            self._exits.record(pid, start_ticks, code, signum, attempt, uid)

    def _identify_orphans(self) -> None:
        """Find out which attempts' processes the agent left behind: it may have died
        before it noted that.

        A process that it had only just started shows its own environment a moment
        later, once it executes its program.
        """
        for _ in range(_ORPHAN_TRIES):
            new = [pid for pid in _children() if pid not in self._orphans]
            unknown = [pid for pid in new if not self._identify(pid)]
            if not unknown:
                return
            time.sleep(_ORPHAN_PAUSE_S)

    def _identify(self, pid: int) -> bool:
        """Note the process's attempt; False while its environment does not show it."""
        try:
            with Path(f"/proc/{pid}/environ").open("rb") as file:
                environment = b"\0" + file.read(_MAX_ENVIRONMENT)
        except OSError:
            return False
        _, found, rest = environment.partition(b"\0" + _ATTEMPT)
        if found:
            attempt, _, _ = rest.partition(b"\0")
            self._orphans[pid] = attempt[:_LONGEST_ID].decode(errors="replace")
        return bool(found)

    def _agent_ended(self, code: int | None, signum: int | None) -> None:
        how = f"signal {signum}" if code is None else f"exit code {code}"
        self._log.write(f"agent {self._agent} ended: {how}")
        self._agent = None
        self._identify_orphans()
        if code == 0 and not self._stopping:
            self._finish("exit code 0")
        if not self._stopping:
            self._plan_restart()


def _children() -> list[int]:
    """The pids of this process's children."""
    me = os.getpid()
    try:
        text = Path(f"/proc/{me}/task/{me}/children").read_text()
    except OSError:  # a kernel may be built without this file
        return []
    return [int(pid) for pid in text.split()]


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
    number = os.environ.get(_PRIVATE_FD)
    private: dict[str, str] = {}
    if number is not None:
        file = int(number)
        private = json.loads(os.pread(file, os.fstat(file).st_size, 0))
    content = json.dumps(private, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def take_lock(path: Path) -> int | None:
    """Lock the file and write this process's pid to it; None if another keeper holds
    the lock.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    # A process that checks whether a keeper runs holds the lock for a moment.
    for _ in range(_LOCK_TRIES):
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
    """Leave the session of the caller, and become the parent of all orphans below."""
    # The leader of a process group cannot start a session.
    if os.getpgrp() != os.getpid():
        os.setsid()
    # If one of them is closed, the next opened file would take its number.
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    # If it was inherited as ignored, exit codes would be lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # The keeper waits for these signals. It cannot just ignore SIGHUP, because the
    # agent would inherit that.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot become the subreaper of the jobs")


def protect() -> None:
    """Close this process to other programs of its user, and keep the file with the
    agent's keys for each agent to come.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot close this process to others")
    if _PRIVATE_FD in os.environ:
        os.set_inheritable(int(os.environ[_PRIVATE_FD]), True)


def main() -> int:
    """Run the keeper; returns 0."""
    protect()
    parser = argparse.ArgumentParser(
        description=(
            "Starts a gpuyard agent again when it dies and keeps its jobs' exits."
        )
    )
    parser.add_argument("--dir", type=Path, required=True, help="the node's folder")
    parser.add_argument("--server", type=Path, help="the home of the server to restart")
    parser.add_argument("command", nargs="+", help="the agent's command, after --")
    options = parser.parse_args()
    folder: Path = options.dir
    folder.mkdir(parents=True, exist_ok=True)
    lock = take_lock(folder / "keeper.lock")
    if lock is None:
        holder = (folder / "keeper.lock").read_text().strip()
        sys.stdout.write(
            f"keeper: process {holder or 'another'} already keeps {folder}\n"
        )
        return 0
    detach()
    os.chdir(folder)
    Keeper(folder, options.command, lock, options.server).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
