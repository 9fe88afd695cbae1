"""Starts the agent, restarts it when it dies, and keeps the exit codes of the jobs that
a dead agent leaves behind.

    python -I keeper.py --dir NODE_DIR [--server HOME] -- AGENT [ARGUMENT…]

It uses only the standard library, and modules beside it that use nothing else
(`keeper_files.py`, `agent_watchdog.py`, `server_restarts.py`): it must not fail with
the program that it watches. It is the subreaper of its descendants, so a job whose
agent has died becomes its child. Before it reaps such a child, it writes how that ended
to `NODE_DIR/exits/PID-START.json` (START: clock ticks from boot to the process's
start). These records are kept for a day.

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
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

# It runs isolated (`-I`), where only installed packages are found.
sys.path.append(str(Path(__file__).parents[2]))

from gpuyard.node.agent_watchdog import WATCH_S, AgentWatchdog
from gpuyard.node.keeper_files import ExitRecords, KeeperLog, take_lock
from gpuyard.node.server_restarts import PRIVATE_FD, ServerRestarts

_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_DUMPABLE = 4
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
# After an agent that lived this long, the pauses start again with the first one.
_STABLE_S = 30.0
_RETRY_WRITE_S = 1.0
_ORPHAN_TRIES = 10
_ORPHAN_PAUSE_S = 0.002
_ATTEMPT = b"GPUYARD_ATTEMPT_ID="
# The kernel lets no program have a longer one. But a process may say that any part of
# its memory is its environment.
_MAX_ENVIRONMENT = 8 << 20
_LONGEST_ID = 200
_SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT}


class Keeper:
    """Keeps one agent running, and the jobs that it leaves behind."""

    def __init__(
        self, folder: Path, command: list[str], lock: int, home: Path | None = None
    ) -> None:
        self._command = command
        self._lock = lock
        self._log = KeeperLog(folder / "keeper.log")
        self._server = ServerRestarts(home, self._log) if home else None
        self._exits = ExitRecords(folder / "exits", self._log)
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
            due.append(WATCH_S)
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
    if PRIVATE_FD in os.environ:
        os.set_inheritable(int(os.environ[PRIVATE_FD]), True)


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
