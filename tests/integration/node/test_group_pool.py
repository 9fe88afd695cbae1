"""A short attempt borrows a control group: nothing that it starts escapes, and nobody gets
a group with something in it.
"""

import errno
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpuyard.node.launcher import (
    Cgroup,
    Exit,
    GroupPool,
    PooledGroup,
    Process,
    ProcessLimits,
    procfs,
)
from gpuyard.node.launcher import adopt as adopt_attempt
from gpuyard.node.launcher.procfs import stat
from tests.support.wait import wait_until

MOST = 20
LIMITS = ProcessLimits(processes=MOST, default_memory_bytes=1 << 33)
# Begins once its group holds it: what a job does in its first half millisecond is
# another test.
WHEN_HELD = "while [ ! -e go ]; do sleep 0.01; done; "
# Leaves the session, its parent and its environment.
DAEMON = WHEN_HELD
DAEMON += "(setsid env -i sh -c 'echo $$ > daemon.pid; exec sleep 1000' &); "

Start = Callable[..., Process]
Ended = Callable[[Process], Exit]

pytestmark = pytest.mark.usefixtures("pids_groups")


@pytest.fixture
def pool() -> Iterator[GroupPool]:
    made = GroupPool(f"node_{uuid.uuid4().hex}", MOST)
    yield made
    made.close()
    made.sweep()


def take(pool: GroupPool) -> PooledGroup:
    group = pool.take()
    assert group is not None
    return group


def end(process: Process, ended: Ended) -> None:
    """As the agent does it."""
    ended(process)
    if not process.left_nothing():
        process.kill_all()
    process.reap()
    assert process.cleanup()


def daemon(tmp_path: Path) -> int:
    (tmp_path / "go").touch()
    file = tmp_path / "daemon.pid"
    return int(
        wait_until(
            lambda: file.exists() and file.read_text().strip(), what="the daemon"
        )
    )


def running(pid: int) -> bool:
    found = stat(pid)
    return found is not None and not found.dead


def test_one_group_serves_one_short_attempt_after_another(
    pool: GroupPool, start: Start, ended: Ended
) -> None:
    names = set[str]()
    for _ in range(5):
        group = take(pool)
        names.add(group.name)
        process = start("true", first_group=group, limits=LIMITS)
        ended(process)
        process.reap()
        assert process.cleanup()
    assert len(names) == 1


def test_two_attempts_at_a_time_have_two_groups(pool: GroupPool) -> None:
    one = take(pool)
    other = take(pool)
    assert one.name != other.name
    assert one.give_back()
    assert other.give_back()


def test_its_limits_are_told(pool: GroupPool, start: Start) -> None:
    process = start("sleep", "1000", first_group=take(pool), limits=LIMITS)
    assert process.enforcement["processes"].startswith("cgroup v")
    assert process.enforcement.keys() == {"processes", "memory"}
    before = process.enforcement
    process.settle(LIMITS)
    assert process.enforcement == before


def test_a_fork_bomb_is_stopped_in_the_first_moment(
    pool: GroupPool, start: Start, log: Path, tmp_path: Path
) -> None:
    script = f"{WHEN_HELD} for i in $(seq {2 * MOST}); do sleep 1000 & done"
    group = take(pool)
    start("sh", "-c", script, first_group=group, limits=LIMITS)
    (tmp_path / "go").touch()
    wait_until(lambda: "fork" in log.read_text(), what="the refusal")
    assert len(group.cgroup.procs()) <= MOST


@pytest.mark.parametrize("then", ["exit 3", "kill -9 $$"])
def test_what_leaves_everything_behind_ends_with_its_attempt(
    pool: GroupPool, start: Start, ended: Ended, tmp_path: Path, then: str
) -> None:
    group = take(pool)
    process = start("sh", "-c", DAEMON + then, first_group=group, limits=LIMITS)
    pid = daemon(tmp_path)
    assert not process.left_nothing()
    ended(process)
    assert process.kill_all() == []
    assert not running(pid)
    process.reap()
    wait_until(lambda: stat(pid) is None, what="somebody to reap the daemon")
    assert process.cleanup()
    # In the group that was killed nothing can fork any more.
    assert take(pool).name != group.name


def test_what_was_started_before_the_group_held_it_is_found(
    pool: GroupPool,
    start: Start,
    ended: Ended,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader may have ended before it was moved: then the group does not count it,
    and what is counted is no zombie.
    """
    join = PooledGroup.join

    def join_late(self: PooledGroup, pid: int) -> None:
        daemon(tmp_path)
        wait_until(lambda: not running(pid), what="the end of the leader")
        join(self, pid)

    monkeypatch.setattr(PooledGroup, "join", join_late)
    os.mkfifo(tmp_path / "go")
    early = "echo $$ > daemon.pid; read line < go; exec env -i sleep 1000"
    script = f"(setsid sh -c '{early}' &); exit 3"
    process = start("sh", "-c", script, first_group=take(pool), limits=LIMITS)
    pid = daemon(tmp_path)
    (tmp_path / "go").write_text("go\n")
    wait_until(
        lambda: Path(f"/proc/{pid}/environ").read_bytes() == b"",
        what="the loss of its environment",
    )
    assert not process.left_nothing()
    end(process, ended)
    assert not running(pid)


def test_one_that_lives_on_moves_to_groups_of_its_own_with_all_that_it_started(
    pool: GroupPool, start: Start, ended: Ended, tmp_path: Path
) -> None:
    group = take(pool)
    script = f"{DAEMON} exec sleep 1000"
    process = start("sh", "-c", script, first_group=group, limits=LIMITS)
    pid = daemon(tmp_path)
    assert not process.settled
    process.settle(LIMITS)
    assert process.settled
    assert process.cgroup is not None
    assert {path.name for path in process.cgroup.paths} == {process.attempt_id}
    assert {process.pid, pid} <= set(process.cgroup.procs())
    # The next attempt has the group, and its end is not that of this one.
    again = take(pool)
    assert again.name == group.name
    other = start("true", first_group=again, limits=LIMITS)
    ended(other)
    assert other.kill_all() == []
    assert process.alive()
    assert process.kill_all() == []
    assert not running(pid)


def test_one_that_forks_without_end_is_moved_whole(
    pool: GroupPool, start: Start, tmp_path: Path, log: Path
) -> None:
    script = tmp_path / "relay.sh"
    script.write_text(
        '#!/bin/sh\necho x\n[ $1 -lt 20000 ] && setsid env -i "$0" $(($1 + 1)) &\n'
    )
    script.chmod(0o755)
    process = start(
        "sh",
        "-c",
        f"{WHEN_HELD} {script} 1; exec sleep 1000",
        first_group=take(pool),
        limits=LIMITS,
    )
    (tmp_path / "go").touch()
    wait_until(lambda: log.stat().st_size > 20, what="the relay to be running")
    process.settle(LIMITS)
    assert process.kill_all() == []
    size = log.stat().st_size
    assert process.exit() is not None
    assert size < 40_000
    assert log.stat().st_size == size


@pytest.mark.parametrize("settles", [True, False], ids=["settled", "at-once"])
def test_the_next_agent_finds_the_group_of_one_in_its_first_moment(
    pool: GroupPool, start: Start, tmp_path: Path, *, settles: bool
) -> None:
    group = take(pool)
    script = f"{DAEMON} exec sleep 1000"
    process = start("sh", "-c", script, first_group=group, limits=LIMITS)
    pid = daemon(tmp_path)
    adopted = adopt_attempt(
        process.attempt_id,
        process.pid,
        process.start_ticks,
        tmp_path,
        first_group=group.name,
    )
    # Another attempt's group is none of its.
    GroupPool(group.name.rpartition("-")[0], MOST).sweep()
    if settles:
        adopted.settle(LIMITS)
        assert adopted.settled
        assert not group.cgroup.paths[0].exists()
    process.kill_all = lambda timeout_s=5.0: []  # this one's agent is dead
    assert adopted.kill_all() == []
    assert not running(pid)
    process.reap()
    assert adopted.cleanup()


def test_a_group_that_somebody_removed_is_made_anew(
    pool: GroupPool, start: Start, ended: Ended
) -> None:
    group = take(pool)
    assert group.cgroup.remove()
    process = start("true", first_group=group, limits=LIMITS)
    assert process.settled
    assert process.enforcement["processes"].startswith("cgroup v")
    end(process, ended)
    # Nobody gives it back: it has let go of its descriptors.
    assert not [file for file in open_files() if group.name in file]
    assert take(pool).name != group.name


def open_files() -> list[str]:
    found: list[str] = []
    for number in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(number.readlink()))
    return found


def test_what_another_thread_of_the_leader_has_started_is_found(
    pool: GroupPool,
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel lists it with that thread only."""
    join = PooledGroup.join

    def join_late(self: PooledGroup, pid: int) -> None:
        daemon(tmp_path)
        join(self, pid)

    script = """
import subprocess, threading, time
words = ["sh", "-c", "echo $$ > daemon.pid; exec sleep 1000"]
def run():
    subprocess.Popen(words, env={}, start_new_session=True).wait()
threading.Thread(target=run).start()
time.sleep(1000)
"""
    monkeypatch.setattr(PooledGroup, "join", join_late)
    reaper = os.getppid()
    children = procfs.children

    def no_orphans(pid: int) -> list[int]:
        return [os.getpid()] if pid == reaper else children(pid)

    monkeypatch.setattr(procfs, "children", no_orphans)
    process = start(
        sys.executable,
        "-c",
        script,
        first_group=take(pool),
        limits=LIMITS,
        reaper=reaper,
    )
    assert process.cgroup is not None
    assert {process.pid, daemon(tmp_path)} <= set(process.cgroup.procs())


def test_one_that_cannot_be_looked_at_runs_on_and_is_known(
    pool: GroupPool,
    start: Start,
    ended: Ended,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would be reported as never started, and nobody would end it."""

    def fails() -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    group = take(pool)
    with monkeypatch.context() as patch:
        patch.setattr(procfs, "newest_pid", fails)
        process = start("sh", "-c", "exit 3", first_group=group, limits=LIMITS)
    assert ended(process) == Exit(code=3)


def test_what_stays_in_the_first_group_is_ended_with_its_attempt(
    pool: GroupPool, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken for moved, and was not."""
    script = f"{DAEMON} exec sleep 1000"
    process = start("sh", "-c", script, first_group=take(pool), limits=LIMITS)
    pid = daemon(tmp_path)

    def moves_nothing(self: Cgroup, other: Cgroup) -> bool:
        return True

    monkeypatch.setattr(Cgroup, "move_to", moves_nothing)
    process.settle(LIMITS)
    assert not process.settled
    assert process.kill_all() == []
    assert not running(pid)


def test_the_groups_of_an_agent_that_died_are_removed_if_they_are_empty(
    pool: GroupPool, start: Start
) -> None:
    unused = take(pool)
    used = take(pool)
    start("sleep", "1000", first_group=used, limits=LIMITS)
    owner, _, _ = unused.name.rpartition("-")
    GroupPool(owner, MOST).sweep()
    assert not unused.cgroup.paths[0].exists()
    assert used.cgroup.paths[0].exists()
    unused.discard()
