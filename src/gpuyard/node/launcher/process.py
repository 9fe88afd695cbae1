"""An attempt while it runs: whether it is alive, how it ended, what it uses, and how to
end all of it.

Everything that an attempt starts is found by its control group, by its session, or by
the variable GPUYARD_ATTEMPT_ID, which every process inherits. A process is identified
by its pid and its start time, never by its pid alone.
"""

import json
import os
import select
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpuyard.node.launcher import procfs
from gpuyard.node.launcher.cgroup import Cgroup
from gpuyard.node.launcher.held_groups import HeldGroups
from gpuyard.node.launcher.limits import NO_GROUP, ProcessLimits
from gpuyard.node.launcher.members import (
    ATTEMPT_VARIABLE,
    carries,
    descendants,
    no_orphans,
    strays,
)
from gpuyard.node.launcher.waiting import peek

_MIB = 1 << 20
_QUIET_ROUNDS = 5
_GROUPS_TIMEOUT_S = 5.0
# For processes that fork and end all the time; those that stay are found by the first.
_MAX_SCANS = 10


@dataclass(frozen=True, slots=True)
class Exit:
    """How an attempt's first process ended: with a `code`, by a `signal`, or unknown
    (`lost`).

    `out_of_memory`: it failed after the kernel had killed a process of the attempt at
    its memory limit. `lost`: nobody saw the end; while a keeper is running it may still
    write its record. `ended_boot_s`: when it ended, in seconds of the boot clock, if a
    keeper recorded that; None if it has only just ended. Equality asks only how it
    ended.
    """

    code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False
    lost: bool = False
    ended_boot_s: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """What an attempt uses: CPU seconds since its start, and MiB of memory now and at
    most.

    `cpu_s` is that of the control group if that counts it, else that of the live
    processes and of the children that they waited for. `rss_mb` adds up the processes,
    so shared pages count more than once. `peak_mb` is the group's, file cache included,
    or the highest `rss_mb` so far.
    """

    cpu_s: float
    rss_mb: float
    peak_mb: float


class Process:
    """An attempt's process tree, identified by its leader's `pid` and `start_ticks`
    (clock ticks from boot to its start).

    `enforcement`: what enforces each limit (`memory`, `cpus`, `processes`): `cgroup
    v1`, `cgroup v2`, `rlimit`, `affinity`, or `none: ` and the reason. It is empty for
    an adopted process, because only the launch knew it.

    One that began in a group of the pool has no groups of its own until `settle`.
    """

    def __init__(
        self,
        attempt_id: str,
        pid: int,
        start_ticks: int,
        *,
        pidfd: int | None,
        groups: HeldGroups,
        enforcement: dict[str, str] | None = None,
        contained: bool = False,
        exits_dir: Path | None = None,
        reaper: int | None = None,
    ) -> None:
        """Use `spawn` or `adopt`.

        `pidfd`: None for a process that has ended. `contained`: the groups held it
        before it could fork, so if they are empty nothing is left.
        `exits_dir`: where a keeper records how it ended; None for a child of this
        process. `reaper`: see `LaunchRequest`.
        """
        # Session 0 is the kernel's: to kill all of it would stop the machine.
        if pid <= 1:
            raise ValueError(f"{pid} cannot be the pid of an attempt")
        self.attempt_id = attempt_id
        self.pid = pid
        self.start_ticks = start_ticks
        self._groups = groups
        # If so, the leader was in these groups; it may be a zombie there.
        self._had_leader = contained
        # What it had used before its own groups counted.
        self._cpu_before_s = 0.0
        self.enforcement = enforcement or {}
        self._pidfd = pidfd
        self._contained = contained
        self._exits_dir = exits_dir
        self._reaper = reaper
        self._exit: Exit | None = None
        self._reaped = False
        # Known from its end on.
        self._leader_used_s: float | None = None
        self._peak_mb = 0.0

    @property
    def cgroup(self) -> Cgroup | None:
        """The groups that hold it; None without groups."""
        return self._groups.all

    def fileno(self) -> int:
        """A descriptor that becomes readable when the leader has ended.

        Raises ProcessLookupError if the leader had ended before.
        """
        if self._pidfd is None:
            raise ProcessLookupError(
                f"process {self.pid} of {self.attempt_id} has ended"
            )
        return self._pidfd

    def alive(self) -> bool:
        """True while the leader runs."""
        if self._pidfd is None:
            return False
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return not poll.poll(0)

    def exit(self) -> Exit | None:
        """How the leader ended; None while it runs. Reaps nothing. A known end never
        changes.

        For an adopted process `lost` may change: ask again while the keeper lives.
        """
        if self._exit is not None:
            return self._exit
        if self._exits_dir is None:
            found = self._peek()
        else:
            found = self._look_up(self._exits_dir)
        if found is not None and not found.lost:
            self._exit = found
        return found

    def reap(self) -> None:
        """Reap the ended leader; call `exit` before.

        Raises RuntimeError if it still runs.
        """
        if self.exit() is None:
            raise RuntimeError(f"process {self.pid} of {self.attempt_id} still runs")
        if self._exits_dir is None and not self._reaped:
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self.pid, os.WEXITED)
            self._reaped = True

    def signal(self, signum: int) -> None:
        """Send a signal to every process group of the leader's session, if there are
        any.
        """
        for group in {process.group for process in self._session(list(procfs.stats()))}:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signum)

    def left_nothing(self) -> bool:
        """True when it is proved at little cost that no process of the attempt lives;
        False proves nothing.

        Either its group held all that it ever started and is empty, or its leader has
        ended and no orphan has come to the reaper.
        """
        if self._contained and self._groups.are_empty(self._zombies()):
            return True
        if self._reaper is None or self.alive():
            return False
        return no_orphans(self._reaper)

    def _zombies(self) -> int:
        """How many processes in the groups are certainly zombies: the leader is one
        from its end until it is reaped.
        """
        found = self.exit()
        is_zombie = found is not None and not found.lost and not self._reaped
        return int(self._had_leader and is_zombie)

    @property
    def settled(self) -> bool:
        """False while it is in a group of the pool."""
        return self._groups.settled

    def settle(self, limits: ProcessLimits, root: Path | None = None) -> None:
        """Move an attempt that began in a group of the pool to groups of its own, where
        its limits begin. Blocks; does nothing for others, or if it has ended.

        `root`: see `Cgroup.create`.
        """
        if self.settled or not self.alive():
            return
        self._cpu_before_s = self.leader_cpu_s()
        own = self._groups.settle(self.attempt_id, limits, root)
        held = own.enforced if own else {}
        enforcement = {**self.enforcement, **held}
        if "memory" in self.enforcement.keys() - held.keys():
            enforcement["memory"] = NO_GROUP
        self.enforcement = enforcement

    def kill_all(self, timeout_s: float = 5.0) -> list[int]:
        """Send SIGKILL to everything that the attempt started until nothing is left,
        for at most `timeout_s` seconds.

        Returns the pids that are still there: none, except for processes that are stuck
        in the kernel or belong to another user.
        """
        deadline = time.monotonic() + timeout_s
        found = self.exit()
        if self._exits_dir is None and not self._reaped and not (found and found.lost):
            # The pid cannot be another's: a live child has it, or the zombie that it
            # has become.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self._groups.kill(timeout_s)
        pause_s = 0.001
        newest = procfs.newest_pid()
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
        """Kill the attempt's processes that are newer than the pid `newest`; returns
        the last pid that was checked.

        Processes that fork and end quickly are gone before a scan of all is done. To
        read only the newest ones is fast enough.
        """
        mark = os.fsencode(f"{ATTEMPT_VARIABLE}={self.attempt_id}")
        quiet = 0
        while quiet < _QUIET_ROUNDS:
            last = procfs.newest_pid()
            quiet = quiet + 1
            for pid in range(last, newest, -1):
                process = procfs.stat(pid)
                if process is None or process.dead:
                    continue
                if procfs.has_variable(pid, mark):
                    procfs.send(process, signal.SIGKILL)
                    quiet = 0
            newest = last
        return newest

    def contain(self) -> None:
        """Call this once the groups have the leader: from then on they hold all that
        the attempt starts, also what it has started before.
        """
        if self.cgroup is None:
            return
        if procfs.newest_pid() == self.pid or self._is_alone():
            self._contained = True
            self._had_leader = True
        else:
            self._gather()

    def _is_alone(self) -> bool:
        """True when the leader has no descendants: no child, and no orphan with the
        reaper.
        """
        if self._reaper is None:
            return False
        # The children of another thread are not listed with those of the first.
        leader = procfs.stat(self.pid)
        if leader is None or leader.threads > 1:
            return False
        return not procfs.children(self.pid) and no_orphans(self._reaper)

    def _gather(self) -> None:
        """Move what the attempt started before the groups held it into them."""
        assert self.cgroup is not None
        for _ in range(_MAX_SCANS):
            newest = procfs.newest_pid()
            members = {member.pid for member in self._scan()}
            if self._reaper is not None:
                members |= strays(self._reaper, self.start_ticks)
            loose = members.difference(self.cgroup.procs())
            if not loose:
                self._contained = procfs.newest_pid() == newest
                return
            for pid in loose:
                # It may have ended, or be another user's by now.
                with suppress(OSError):
                    self.cgroup.join(pid)

    def own_pids(self) -> set[int]:
        """The processes that are certainly the attempt's, and not only look so: those
        in its groups and, while its leader lives, those in its session, and what its
        leader has started.
        """
        grouped = set(self.cgroup.procs()) if self.cgroup else set[int]()
        session = {process.pid for process in self._session(list(procfs.stats()))}
        started = descendants(self.pid)
        # Looked at last: once it has gone, another program may have had its pid, and
        # left a session of that number.
        return grouped | session | started if self.alive() else grouped

    def usage(self) -> ProcessUsage:
        """What the attempt uses now."""
        if self.cgroup:
            processes = list(filter(None, map(procfs.stat, self.cgroup.procs())))
        else:
            processes = self._session(list(procfs.stats()))
        rss_mb = sum(process.rss_bytes for process in processes) / _MIB
        own = self._groups.own
        cpu_s = own.cpu_s() if own else None
        peak = own.peak_memory_bytes() if own else None
        self._peak_mb = max(self._peak_mb, rss_mb, (peak or 0) / _MIB)
        if cpu_s is None:
            cpu_s = self._cpu_s_of(processes)
        else:
            cpu_s += self._cpu_before_s
        return ProcessUsage(
            cpu_s=cpu_s,
            rss_mb=rss_mb,
            peak_mb=self._peak_mb,
        )

    def _cpu_s_of(self, processes: list[procfs.Stat]) -> float:
        """CPU seconds of these, and of a leader that has ended and is not among
        them.
        """
        total_s = sum(process.cpu_s for process in processes)
        if any(process.pid == self.pid for process in processes):
            return total_s
        return total_s + self.leader_cpu_s()

    def leader_cpu_s(self) -> float:
        """CPU seconds of the first process and of the children that it waited for; 0
        if they are not known any more.
        """
        if self._leader_used_s is not None:
            return self._leader_used_s
        found = procfs.stat(self.pid)
        return found.cpu_s if found and found.start_ticks == self.start_ticks else 0.0

    def cleanup(self) -> bool:
        """Close the descriptor and remove the control group, or give it back to the
        pool; False if processes are still in it.
        """
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        return self._groups.remove()

    def _peek(self) -> Exit | None:
        try:
            end = peek(self.pid)
        except ChildProcessError:
            return Exit(lost=True)
        if end is None:
            return None
        self._leader_used_s = end.cpu_s
        return self._ended(code=end.code, signum=end.signal)

    def _look_up(self, exits_dir: Path) -> Exit | None:
        if self.alive():
            return None
        path = exits_dir / f"{self.pid}-{self.start_ticks}.json"
        try:
            record = json.loads(path.read_text())
            ended = self._ended(code=record["code"], signum=record["signal"])
            # A keeper of an earlier version did not record the time.
            return replace(ended, ended_boot_s=record.get("boot_s"))
        # There is no record, or a damaged one.
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return Exit(lost=True)

    def _ended(self, code: int | None = None, signum: int | None = None) -> Exit:
        killed_for_memory = code != 0 and self._groups.oom_kills() > 0
        return Exit(code=code, signal=signum, out_of_memory=killed_for_memory)

    def _session(self, processes: list[procfs.Stat]) -> list[procfs.Stat]:
        """Those of `processes` in the leader's session; none if the leader's pid now
        belongs to another session.
        """
        found = [process for process in processes if process.session == self.pid]
        leader = next((process for process in found if process.pid == self.pid), None)
        if leader:
            return found if leader.start_ticks == self.start_ticks else []
        # The leader is gone, so its start time cannot identify the session. A process
        # with the attempt's id does.
        if any(carries(self.attempt_id, process) for process in found):
            return found
        return []

    def _members(self) -> list[procfs.Stat]:
        """All live processes of the attempt, wherever they are.

        To find none is a proof only if no process was started meanwhile. On a host
        where processes start all the time, several scans must be enough.
        """
        if self.left_nothing():
            return []
        for _ in range(_MAX_SCANS):
            newest = procfs.newest_pid()
            found = self._scan()
            if found or procfs.newest_pid() == newest:
                return found
        return []

    def _scan(self) -> list[procfs.Stat]:
        """The live processes of the attempt, without those that were started during the
        scan.
        """
        processes: list[procfs.Stat] = []
        known = set(self.cgroup.procs()) if self.cgroup else set[int]()
        for process in procfs.stats():
            if process.start_ticks < self.start_ticks:
                continue  # older than the leader, so not a descendant
            processes.append(process)
            if not process.dead and carries(self.attempt_id, process):
                known.add(process.pid)
        known.update(process.pid for process in self._session(processes))
        # Parents first.
        processes.sort(key=lambda process: (process.start_ticks, process.pid))
        members: list[procfs.Stat] = []
        for process in processes:
            if process.pid in known or process.parent in known:
                known.add(process.pid)
                if not process.dead and process.pid != os.getpid():
                    members.append(process)
        return members


def adopt(
    attempt_id: str,
    pid: int,
    start_ticks: int,
    exits_dir: Path,
    cgroup_root: Path | None = None,
    first_group: str = "",
) -> Process:
    """Take over an attempt that an earlier agent started, alive or dead. It is not a
    child of this process.

    `exits_dir`: where the keeper records how orphans ended. `cgroup_root`: as at the
    launch. `first_group`: the name of the group of the earlier agent's pool that it
    had; empty for none.
    """
    pidfd = procfs.open_pidfd(pid, start_ticks)
    live_pid = pid if pidfd is not None else None
    groups = HeldGroups.find(attempt_id, first_group, cgroup_root, live_pid)
    return Process(
        attempt_id,
        pid,
        start_ticks,
        pidfd=pidfd,
        groups=groups,
        exits_dir=exits_dir,
    )


def end_groups(attempt_id: str, first_group: str = "") -> None:
    """Kill all that the groups of an attempt hold whose processes are not known, and
    remove them. `first_group`: as for `adopt`.
    """
    groups = HeldGroups.find(attempt_id, first_group)
    groups.kill(_GROUPS_TIMEOUT_S)
    groups.remove()
