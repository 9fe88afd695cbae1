"""Following an attempt: alive or not, how it ended, all of it found and ended, and
taken over by another agent.
"""

import asyncio
import json
import os
import resource
import select
import signal
import subprocess
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from gpuyard.node.launcher import (
    Cgroup,
    Exit,
    Process,
    ProcessLimits,
    adopt,
    find_attempt,
    procfs,
    waiting,
)
from gpuyard.node.launcher.waiting import ChildEnd
from tests.support.wait import wait_until

# Leaves the session and its parents, and ignores what it can.
DAEMON = "trap '' TERM HUP INT; echo $$ > daemon.pid; exec sleep 1000"
AS_DAEMON = (
    "(setsid {env} sh daemon.sh &); while [ ! -s daemon.pid ]; do sleep 0.01; done;"
    " {then}"
)

groups_work = pytest.mark.usefixtures("pids_groups")
both_ways = pytest.mark.parametrize(
    "cgroups", [True, False], ids=["cgroups", "no-cgroups"]
)


def running(pid: int) -> bool:
    found = procfs.stat(pid)
    return found is not None and not found.dead


def daemon(
    start, folder: Path, env: str = "", then: str = "exit 3", **launch
) -> tuple[Process, int]:
    """Start an attempt that leaves a daemon; the attempt and the daemon's pid."""
    (folder / "daemon.sh").write_text(DAEMON)
    # It waits for its control group: what a job does in its first half millisecond is
    # another test.
    when_held = "while [ ! -e go ]; do sleep 0.01; done; "
    process = start(
        "sh", "-c", when_held + AS_DAEMON.format(env=env, then=then), **launch
    )
    (folder / "go").touch()
    file = folder / "daemon.pid"
    return process, int(
        wait_until(
            lambda: file.exists() and file.read_text().strip(), what="the daemon"
        )
    )


def test_alive_until_the_end(start, ended):
    process = start("sleep", "100")
    assert process.alive()
    assert process.exit() is None
    with pytest.raises(RuntimeError, match="still runs"):
        process.reap()
    process.signal(signal.SIGINT)
    assert ended(process) == Exit(signal=signal.SIGINT)
    assert not process.alive()


def test_the_descriptor_is_readable_at_the_end(start):
    process = start("sleep", "100")
    poll = select.poll()
    poll.register(process, select.POLLIN)
    assert poll.poll(0) == []
    process.signal(signal.SIGKILL)
    assert poll.poll(10_000) != []


def test_an_event_loop_can_wait_for_the_end(start):
    async def wait() -> None:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        process = start("true")
        loop.add_reader(process, done.set)
        await asyncio.wait_for(done.wait(), 60)
        loop.remove_reader(process)
        assert process.exit() == Exit(code=0)

    asyncio.run(wait())


def test_a_peek_leaves_the_zombie_and_a_reap_tells_the_same(start, ended):
    process = start("sh", "-c", "exit 42")
    assert ended(process) == Exit(code=42)
    zombie = procfs.stat(process.pid)
    assert zombie is not None
    assert zombie.dead
    assert zombie.start_ticks == process.start_ticks
    assert process.exit() == Exit(code=42)
    process.reap()
    assert procfs.stat(process.pid) is None
    process.reap()
    assert process.exit() == Exit(code=42)
    assert process.cleanup()
    assert process.exit() == Exit(code=42)
    with pytest.raises(ProcessLookupError):
        process.fileno()


def test_what_the_leader_used_is_known_from_its_end_on(start, ended, python):
    """With its children, in one system call where its number is known, else in two."""
    burn = "import time\nwhile time.process_time() < 0.1: pass"
    process = start("sh", "-c", f"{python} -c '{burn}'; {python} -c '{burn}'; exit 3")
    assert ended(process).code == 3
    used_s = process.leader_cpu_s()
    in_two_calls = waiting._peek_in_two_calls(process.pid)
    assert in_two_calls == ChildEnd(3, None, pytest.approx(used_s, abs=0.05))
    assert used_s > 0.2
    process.reap()
    assert process.leader_cpu_s() == used_s
    with pytest.raises(ChildProcessError):
        waiting.peek(process.pid)


def test_a_child_that_someone_else_reaped_is_lost(start):
    process = start("true")
    os.waitpid(process.pid, 0)
    assert process.exit() == Exit(lost=True)


def test_a_signal_reaches_every_group_of_the_session(
    start, ended, python, log, tmp_path
):
    (tmp_path / "group.py").write_text(
        "import os, signal\nos.setpgid(0, 0)\nsignal.signal(signal.SIGTERM, lambda *_:"
        " (print('group', flush=True), os._exit(0)))\nprint('up', flush=True)\nwhile"
        " True: signal.pause()\n"
    )
    script = (
        f"trap 'echo leader; exit 3' TERM; {python} -I group.py & while :; do sleep"
        " 0.01; done"
    )
    process = start("sh", "-c", script)
    wait_until(lambda: "up" in log.read_text(), what="the second group")
    assert (
        len({found.group for found in procfs.stats() if found.session == process.pid})
        == 2
    )
    process.signal(signal.SIGTERM)
    assert ended(process).code == 3
    wait_until(
        lambda: {"leader", "group"} <= set(log.read_text().split()),
        what="both to have heard",
    )


@both_ways
@pytest.mark.parametrize(
    "then", ["exit 3", "sleep 1000"], ids=["leader-gone", "leader-alive"]
)
def test_a_daemon_is_killed(start, tmp_path, cgroups, then):
    process, pid = daemon(start, tmp_path, then=then, cgroups=cgroups)
    assert procfs.stat(pid).session == pid
    assert process.kill_all() == []
    assert not running(pid)
    assert not running(process.pid)


@groups_work
@pytest.mark.parametrize(
    "limits",
    [ProcessLimits(), ProcessLimits(memory_bytes=1 << 32)],
    ids=["direct", "limited"],
)
def test_a_daemon_with_an_environment_of_its_own_is_killed(start, tmp_path, limits):
    process, pid = daemon(
        start, tmp_path, env="env -i PATH=/usr/bin:/bin", limits=limits
    )
    assert b"GPUYARD_ATTEMPT_ID" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert process.kill_all() == []
    assert not running(pid)


@groups_work
def test_what_a_job_started_before_its_group_held_it_is_gathered(
    start, tmp_path, monkeypatch
):
    """The agent may be kept from running just after it has spawned a process."""
    join = Cgroup.join
    file = tmp_path / "early.pid"

    def join_late(self: Cgroup, pid: int) -> None:
        wait_until(
            lambda: file.exists() and file.read_text().strip(), what="the early daemon"
        )
        join(self, pid)

    (tmp_path / "early.sh").write_text(
        "echo $$ > early.pid; while [ ! -e go ]; do sleep 0.01; done; exec env -i sleep"
        " 1000"
    )
    monkeypatch.setattr(Cgroup, "join", join_late)
    process = start("sh", "-c", "(setsid sh early.sh &); exit 3")
    pid = int(file.read_text())
    assert pid in process.cgroup.procs()
    (tmp_path / "go").touch()
    wait_until(
        lambda: Path(f"/proc/{pid}/environ").read_bytes() == b"",
        what="the loss of its environment",
    )
    assert process.kill_all() == []
    assert not running(pid)


@both_ways
def test_what_forks_as_fast_as_it_can_is_killed(start, tmp_path, log, cgroups):
    """Each process lives to start the next one, so that there is always one that was
    not there a moment ago.
    """
    script = tmp_path / "relay.sh"
    script.write_text(
        '#!/bin/sh\necho x\n[ $1 -lt 20000 ] && setsid "$0" $(($1 + 1)) &\n'
    )
    script.chmod(0o755)
    process = start(str(script), "1", cgroups=cgroups)
    wait_until(lambda: log.stat().st_size > 20, what="the relay to be running")
    assert process.kill_all() == []
    assert find_attempt(process.attempt_id) == []
    size = log.stat().st_size
    assert size < 40_000
    assert process.exit() is not None
    assert log.stat().st_size == size


@both_ways
def test_stopped_processes_are_killed(start, cgroups):
    process = start("sh", "-c", "sleep 1000 & sleep 1000", cgroups=cgroups)
    wait_until(lambda: len(find_attempt(process.attempt_id)) == 3, what="all three")
    process.signal(signal.SIGSTOP)
    assert process.kill_all() == []
    assert find_attempt(process.attempt_id) == []


@both_ways
def test_others_are_left_alone(start, cgroups):
    one = start("sleep", "1000", cgroups=cgroups)
    other = start("sleep", "1000", cgroups=cgroups)
    assert one.kill_all() == []
    assert other.alive()
    assert one.kill_all() == []


def test_find_attempt_names_the_leader_first(start):
    process = start("sh", "-c", "setsid sleep 1000 & sleep 1000 & sleep 1000")
    wait_until(lambda: len(find_attempt(process.attempt_id)) == 4, what="all four")
    found = find_attempt(process.attempt_id)
    assert found[0] == process.pid
    assert os.getpid() not in found
    assert find_attempt(process.attempt_id[:-1]) == []
    process.kill_all()
    assert find_attempt(process.attempt_id) == []


@both_ways
def test_usage_counts_cpu_and_memory(start, python, log, cgroups):
    program = (
        "m = bytearray(50 << 20)\nfor i in range(0, len(m), 4096): m[i] ="
        " 1\nprint('held')\nwhile True: pass"
    )
    process = start(python, "-u", "-c", program, cgroups=cgroups)
    wait_until(lambda: "held" in log.read_text(), what="the memory")
    first = process.usage()
    assert 50 < first.rss_mb < 200
    assert first.peak_mb >= first.rss_mb
    wait_until(lambda: process.usage().cpu_s > first.cpu_s + 0.05, what="CPU time")
    process.kill_all()
    after = process.usage()
    assert after.rss_mb == 0
    assert after.peak_mb >= first.rss_mb


@pytest.fixture
def orphan(tmp_path, attempt_id):
    """A process that is no child of this one, as a dead agent leaves it: its attempt,
    pid and start.
    """
    ready = tmp_path / "orphan.pid"
    environment = {**os.environ, "GPUYARD_ATTEMPT_ID": attempt_id}
    command = f"setsid sh -c 'echo $$ > {ready}; exec sleep 1000' &"
    subprocess.run(
        ["sh", "-c", command], env=environment, check=True, stdout=subprocess.DEVNULL
    )
    pid = int(
        wait_until(
            lambda: ready.exists() and ready.read_text().strip(), what="the orphan"
        )
    )
    wait_until(
        lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n", what="its exec"
    )
    yield attempt_id, pid, procfs.stat(pid).start_ticks
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def write_record(
    folder: Path, pid: int, start_ticks: int, code: int | None, signum: int | None
) -> None:
    content = {
        "pid": pid,
        "start_ticks": start_ticks,
        "code": code,
        "signal": signum,
        "at": 0.0,
    }
    (folder / f"{pid}-{start_ticks}.json").write_text(json.dumps(content))


def test_a_live_process_is_adopted(orphan, tmp_path):
    process = adopt(*orphan, tmp_path)
    assert process.alive()
    assert process.exit() is None
    poll = select.poll()
    poll.register(process, select.POLLIN)
    process.signal(signal.SIGTERM)
    assert poll.poll(10_000) != []
    assert not process.alive()
    assert process.exit() == Exit(lost=True)
    write_record(tmp_path, *orphan[1:], None, 15)  # the keeper came after
    assert process.exit() == Exit(signal=15)
    (tmp_path / f"{orphan[1]}-{orphan[2]}.json").unlink()
    process.reap()
    assert process.cleanup()
    assert process.exit() == Exit(signal=15)


def test_an_adopted_attempt_is_killed_whole(orphan, tmp_path):
    process = adopt(*orphan, tmp_path)
    assert process.kill_all() == []
    assert find_attempt(orphan[0]) == []
    process.cleanup()


@pytest.mark.parametrize(("code", "signum"), [(0, None), (7, None), (None, 9)])
def test_a_dead_process_is_adopted_with_the_keepers_record(tmp_path, code, signum):
    write_record(tmp_path, 4_194_305, 77, code, signum)
    process = adopt("att_dead", 4_194_305, 77, tmp_path)
    assert not process.alive()
    assert process.exit() == Exit(code=code, signal=signum)
    process.signal(signal.SIGTERM)
    assert process.kill_all() == []
    process.reap()
    assert process.cleanup()
    with pytest.raises(ProcessLookupError):
        process.fileno()


@pytest.mark.parametrize("content", ["", "{", "{}", '{"code": 0}', "[]", "null"])
def test_a_damaged_record_is_no_exit_code(tmp_path, content):
    (tmp_path / "4194305-77.json").write_text(content)
    assert adopt("att_dead", 4_194_305, 77, tmp_path).exit() == Exit(lost=True)


def test_a_pid_given_to_another_process_is_not_taken_for_it(orphan, tmp_path):
    """The record under its own start time counts; the other process is neither waited
    for nor hurt.
    """
    _, pid, start_ticks = orphan
    write_record(tmp_path, pid, start_ticks - 1, 5, None)
    process = adopt("att_gone", pid, start_ticks - 1, tmp_path)
    assert not process.alive()
    assert process.exit() == Exit(code=5)
    process.signal(signal.SIGKILL)
    assert process.kill_all() == []
    assert process.usage().rss_mb == 0
    assert process.cleanup()
    assert running(pid)
    assert procfs.stat(pid).start_ticks == start_ticks


def test_a_session_that_got_the_number_later_is_left_alone(tmp_path, attempt_id):
    """Its leader has gone as well, so that no start time tells the two apart."""
    file = tmp_path / "member.pid"
    script = f"sleep 1000 > /dev/null & echo $! > {file}; echo $$"
    leader = int(subprocess.check_output(["setsid", "sh", "-c", script]))
    member = int(wait_until(lambda: file.read_text().strip(), what="the member"))
    assert procfs.stat(member).session == leader
    process = adopt(attempt_id, leader, 1, tmp_path)
    process.signal(signal.SIGKILL)
    assert process.kill_all() == []
    assert running(member)
    os.kill(member, signal.SIGKILL)


@pytest.mark.parametrize("pid", [-1, 0, 1])
def test_what_is_no_attempts_pid_is_refused(tmp_path, pid):
    """The kernel's threads are session 0, and all processes descend from process 1."""
    with pytest.raises(ValueError, match="cannot be the pid"):
        adopt("att_none", pid, 0, tmp_path)


def test_adopting_finds_the_group_again(start, tmp_path):
    process = start("sleep", "1000", limits=ProcessLimits(processes=10))
    again = adopt(process.attempt_id, process.pid, process.start_ticks, tmp_path)
    assert (again.cgroup is None) == (process.cgroup is None)
    if process.cgroup:
        assert set(again.cgroup.paths) == set(process.cgroup.paths)
    assert again.kill_all() == []
    assert not process.alive()
    os.close(again.fileno())


def test_a_lack_of_descriptors_is_not_taken_for_death(start, tmp_path):
    """With none left nothing can be read of a process: that must be an error, not an
    empty list.
    """
    process = start("sleep", "1000", cgroups=False)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        for ask in (
            process.kill_all,
            lambda: find_attempt(process.attempt_id),
            lambda: procfs.stat(process.pid),
        ):
            with pytest.raises(OSError, match="Too many open files"):
                ask()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert process.kill_all() == []


def test_stat_reads_a_name_that_looks_like_fields(start, tmp_path):
    """A program may be called anything, also `x) Z 1 (`."""
    program = tmp_path / "x) Z 1 ("
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o755)
    process = start(str(program), "1000")
    found = procfs.stat(process.pid)
    assert (found.session, found.group, found.dead) == (process.pid, process.pid, False)


def test_a_process_lives_on_when_its_first_thread_ends(start, python, log):
    """Then its state reads as a zombie's, and it can still be killed."""
    program = (
        "import ctypes, threading, time\nthreading.Thread(target=lambda: (print('up',"
        " flush=True),"
        " time.sleep(1000))).start()\nctypes.CDLL(None).pthread_exit(None)\n"
    )
    process = start(python, "-c", program, cgroups=False)
    wait_until(
        lambda: log.read_text() and procfs.stat(process.pid).state == "Z",
        what="the first thread's end",
    )
    assert not procfs.stat(process.pid).dead
    assert process.exit() is None
    assert process.kill_all() == []
    assert process.exit() == Exit(signal=9)


def test_no_more_of_an_environment_is_read_than_a_program_can_have(
    tmp_path: Path,
) -> None:
    """A process may say that all of its memory is its environment."""
    endless = tmp_path / "environ"
    endless.touch()
    os.truncate(endless, 1 << 40)
    assert len(procfs.read_file(str(endless), procfs.MAX_ENVIRONMENT)) == 8 << 20


def test_a_variable_is_found_whole(start) -> None:
    process = start("sleep", "60", environment={"ONE": "two", "THREE": "four"})
    found = partial(procfs.has_variable, process.pid)
    assert found(b"ONE=two") and found(b"THREE=four")
    assert not found(b"NE=two") and not found(b"ONE=tw") and not found(b"THREE=")


def test_a_session_left_by_a_pid_of_before_is_not_certainly_the_attempts(tmp_path):
    # Who gets the pid of a leader that has ended can make a session of that number, and
    # say that it is of the attempt.
    leader = subprocess.Popen(
        ["sh", "-c", "sleep 1000 > /dev/null & echo $!"],
        env={**os.environ, "GPUYARD_ATTEMPT_ID": "attempt_gone"},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    ticks = procfs.start_ticks(leader.pid)
    left = int(leader.communicate()[0])
    try:
        process = adopt("attempt_gone", leader.pid, ticks, tmp_path)
        assert process.own_pids() == set()
    finally:
        os.kill(left, signal.SIGKILL)
