"""An attempt as it runs: is it alive, how did it end, what does it use, and end all of it.

Whatever an attempt starts is found again by its control group, by its session, or by the variable GPUYARD_ATTEMPT_ID
that every process inherits. A process is named by its pid and its start time, never by its pid alone.
"""

import json
import os
import select
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpuyard.node.launcher import procfs
from gpuyard.node.launcher.cgroup import Cgroup

ATTEMPT_VARIABLE = "GPUYARD_ATTEMPT_ID"
_MIB = 1 << 20
_QUIET_ROUNDS = 5
_LOOKS = 10  # for what forks and ends all the time; whatever stays is found at the first


@dataclass(frozen=True, slots=True)
class Exit:
    """How an attempt's first process ended: with a `code`, by a `signal`, or unknown (`lost`).

    `out_of_memory`: it failed after the kernel had killed a process of the attempt at its memory limit. `lost`: nobody
    was there to see; while a keeper is running it may still be about to write its record.
    """

    code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """What an attempt uses: CPU seconds since its start, MiB of memory now and at most.

    `cpu_s` is the control group's where that counts, else that of the live processes and the children they waited for.
    `rss_mb` adds up the processes, so that shared pages count more than once. `peak_mb` is the group's, file cache
    included, or the highest `rss_mb` seen so far.
    """

    cpu_s: float
    rss_mb: float
    peak_mb: float


class Process:
    """An attempt's process tree, named by its leader's `pid` and `start_ticks` (clock ticks from boot to its start).

    `enforcement`: by limit (`memory`, `cpus`, `processes`), what holds it: `cgroup v1`, `cgroup v2`, `rlimit`,
    `affinity`, or `none: ` and why. It is empty for an adopted process: only the launch knew.
    """

    def __init__(
        self,
        attempt_id: str,
        pid: int,
        start_ticks: int,
        *,
        pidfd: int | None,
        cgroup: Cgroup | None,
        enforcement: dict[str, str] | None = None,
        contained: bool = False,
        exits_dir: Path | None = None,
        reaper: int | None = None,
    ) -> None:
        """Made by `spawn` and `adopt` alone.

        `pidfd`: None for a process already gone. `contained`: the control group held it before it could fork, so that
        an empty group means that nothing is left. `exits_dir`: where a keeper writes how it ended; None for a
        child of this process. `reaper`: see `Launch`.
        """
        if pid <= 1:  # session 0 is the kernel's: killing all of it would be the end of the machine
            raise ValueError(f"{pid} cannot be the pid of an attempt")
        self.attempt_id = attempt_id
        self.pid = pid
        self.start_ticks = start_ticks
        self.cgroup = cgroup
        self.enforcement = enforcement or {}
        self._pidfd = pidfd
        self._contained = contained
        self._exits_dir = exits_dir
        self._reaper = reaper
        self._exit: Exit | None = None
        self._reaped = False
        self._peak_mb = 0.0

    def fileno(self) -> int:
        """A descriptor that is readable once the leader has ended. Raises ProcessLookupError if it is long gone."""
        if self._pidfd is None:
            raise ProcessLookupError(f"process {self.pid} of {self.attempt_id} has ended")
        return self._pidfd

    def alive(self) -> bool:
        """Whether the leader still runs."""
        if self._pidfd is None:
            return False
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return not poll.poll(0)

    def exit(self) -> Exit | None:
        """How the leader ended, None while it runs. Reaps nothing, and once known says the same for ever.

        A `lost` answer about an adopted process may be a matter of time: ask again while the keeper lives.
        """
        if self._exit is not None:
            return self._exit
        found = self._peek() if self._exits_dir is None else self._look_up(self._exits_dir)
        if found is not None and not found.lost:
            self._exit = found
        return found

    def reap(self) -> None:
        """Let the ended leader go, after `exit` has told how it ended. Raises RuntimeError if it still runs."""
        if self.exit() is None:
            raise RuntimeError(f"process {self.pid} of {self.attempt_id} still runs")
        if self._exits_dir is None and not self._reaped:
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self.pid, os.WEXITED)
            self._reaped = True

    def signal(self, signum: int) -> None:
        """Send a signal to every process group of the leader's session; nothing happens if none is left."""
        for group in {process.group for process in self._session(list(procfs.stats()))}:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signum)

    def left_nothing(self) -> bool:
        """Whether there is a cheap proof that no process of the attempt lives.

        Either its group held all it ever started and is empty, or its leader has ended and no orphan has come to the
        reaper. False proves nothing.
        """
        if self.cgroup and self._contained and self.cgroup.empty():
            return True
        return self._reaper is not None and not self.alive() and no_orphans(self._reaper)

    def kill_all(self, timeout_s: float = 5.0) -> list[int]:
        """SIGKILL everything the attempt started, again until nothing is left: at most for `timeout_s` seconds.

        Returns the pids that are still there: [] but for processes stuck in the kernel or of another user.
        """
        deadline = time.monotonic() + timeout_s
        found = self.exit()
        if self._exits_dir is None and not self._reaped and not (found and found.lost):
            # The pid is ours: a live child holds it, or the zombie that it has become.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        if self.cgroup:
            self.cgroup.kill(timeout_s)
        pause_s, newest = 0.001, procfs.newest_pid()
        while members := self._members():
            for process in members:
                procfs.send(process, signal.SIGKILL)
            newest = self._chase(newest)
            if time.monotonic() > deadline:
                return [process.pid for process in members]
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.05)
        return []

    def _chase(self, newest: int) -> int:
        """Kill those of the attempt's processes that are newer than the pid `newest`; returns the pid it came to.

        Reading the newest one by one is quick enough for a relay of short lives, which outruns a look at all.
        """
        mark, quiet = os.fsencode(f"{ATTEMPT_VARIABLE}={self.attempt_id}"), 0
        while quiet < _QUIET_ROUNDS:
            last, quiet = procfs.newest_pid(), quiet + 1
            for pid in range(last, newest, -1):
                process = procfs.stat(pid)
                if process and not process.dead and mark in procfs.read_file(f"/proc/{pid}/environ"):
                    procfs.send(process, signal.SIGKILL)
                    quiet = 0
            newest = last
        return newest

    def gather(self) -> None:
        """Move into the control group what the attempt started before the group held it.

        Only what left the session, cleared its environment and lost its parent in that time escapes.
        """
        if self.cgroup is None:
            return
        for _ in range(_LOOKS):
            newest = procfs.newest_pid()
            loose = {member.pid for member in self._look()}.difference(self.cgroup.procs())
            if not loose:
                self._contained = procfs.newest_pid() == newest
                return
            for pid in loose:
                with suppress(ProcessLookupError):
                    self.cgroup.join(pid)

    def usage(self) -> Usage:
        """What the attempt uses now."""
        if self.cgroup:
            processes = list(filter(None, map(procfs.stat, self.cgroup.procs())))
        else:
            processes = self._session(list(procfs.stats()))
        rss_mb = sum(process.rss_bytes for process in processes) / _MIB
        cpu_s = self.cgroup.cpu_s() if self.cgroup else None
        peak = self.cgroup.peak_memory_bytes() if self.cgroup else None
        self._peak_mb = max(self._peak_mb, rss_mb, (peak or 0) / _MIB)
        return Usage(
            cpu_s=self._cpu_s_of(processes) if cpu_s is None else cpu_s,
            rss_mb=rss_mb,
            peak_mb=self._peak_mb,
        )

    def _cpu_s_of(self, processes: list[procfs.Stat]) -> float:
        """CPU seconds of these, and of a leader that has ended and is listed no more."""
        ended = 0.0 if any(process.pid == self.pid for process in processes) else self.leader_cpu_s()
        return ended + sum(process.cpu_s for process in processes)

    def leader_cpu_s(self) -> float:
        """CPU seconds of the first process and of the children it waited for, until it is reaped; 0 after that."""
        found = procfs.stat(self.pid)
        return found.cpu_s if found and found.start_ticks == self.start_ticks else 0.0

    def cleanup(self) -> bool:
        """Close the descriptor and remove the control group; False if processes are still in it."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        return self.cgroup is None or self.cgroup.remove()

    def _peek(self) -> Exit | None:
        try:
            result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return Exit(lost=True)
        if result is None:
            return None
        if result.si_code == os.CLD_EXITED:
            return self._ended(code=result.si_status)
        return self._ended(signum=result.si_status)

    def _look_up(self, exits_dir: Path) -> Exit | None:
        if self.alive():
            return None
        try:
            record = json.loads((exits_dir / f"{self.pid}-{self.start_ticks}.json").read_text())
            return self._ended(code=record["code"], signum=record["signal"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):  # no record, or a damaged one
            return Exit(lost=True)

    def _ended(self, code: int | None = None, signum: int | None = None) -> Exit:
        killed_for_memory = code != 0 and self.cgroup is not None and self.cgroup.oom_kills() > 0
        return Exit(code=code, signal=signum, out_of_memory=killed_for_memory)

    def _session(self, processes: list[procfs.Stat]) -> list[procfs.Stat]:
        """Those of `processes` in the leader's session; none if the leader's pid has gone to another session."""
        found = [process for process in processes if process.session == self.pid]
        leader = next((process for process in found if process.pid == self.pid), None)
        if leader:
            return found if leader.start_ticks == self.start_ticks else []
        # With no leader left to tell by its start, one that carries the attempt's id proves whose session it is.
        return found if any(_carries(self.attempt_id, process) for process in found) else []

    def _members(self) -> list[procfs.Stat]:
        """All live processes of the attempt, wherever they have gone.

        Finding none is proof if no process was started meanwhile. On a host where that never happens, several looks
        have to do.
        """
        if self.left_nothing():
            return []
        for _ in range(_LOOKS):
            newest = procfs.newest_pid()
            found = self._look()
            if found or procfs.newest_pid() == newest:
                return found
        return []

    def _look(self) -> list[procfs.Stat]:
        """The live processes of the attempt, but for those that were started while this looked."""
        processes: list[procfs.Stat] = []
        known = set(self.cgroup.procs()) if self.cgroup else set[int]()
        for process in procfs.stats():
            if process.start_ticks < self.start_ticks:
                continue  # what is older than the leader is none of its descendants
            processes.append(process)
            if not process.dead and _carries(self.attempt_id, process):
                known.add(process.pid)
        known.update(process.pid for process in self._session(processes))
        members: list[procfs.Stat] = []
        for process in sorted(processes, key=lambda process: (process.start_ticks, process.pid)):  # parents first
            if process.pid in known or process.parent in known:
                known.add(process.pid)
                if not process.dead and process.pid != os.getpid():
                    members.append(process)
        return members


def adopt(attempt_id: str, pid: int, start_ticks: int, exits_dir: Path, cgroup_root: Path | None = None) -> Process:
    """Take over an attempt that an earlier agent started, alive or dead, as a process that is no child of this one.

    `exits_dir`: where the keeper records how orphans ended. `cgroup_root`: as it was at the launch.
    """
    pidfd = procfs.open_pidfd(pid, start_ticks)
    cgroup = Cgroup.open(attempt_id, cgroup_root, pid if pidfd is not None else None)
    return Process(attempt_id, pid, start_ticks, pidfd=pidfd, cgroup=cgroup, exits_dir=exits_dir)


def find_attempt(attempt_id: str) -> list[int]:
    """The pids of all live processes that carry the attempt's id in their environment, its session's leader first.

    Only processes whose environment this user may read are found.
    """
    found = [p for p in procfs.stats() if not p.dead and p.pid != os.getpid() and _carries(attempt_id, p)]
    found.sort(key=lambda process: (process.session != process.pid, process.start_ticks, process.pid))
    return [process.pid for process in found]


def no_orphans(reaper: int) -> bool:
    """Whether this process is the only child of its parent `reaper`, the subreaper to which orphans go."""
    return os.getppid() == reaper and procfs.children(reaper) == [os.getpid()]


def _carries(attempt_id: str, process: procfs.Stat) -> bool:
    """Whether the process has the attempt's id in its environment."""
    return os.fsencode(f"{ATTEMPT_VARIABLE}={attempt_id}") in procfs.environment(process.pid)
