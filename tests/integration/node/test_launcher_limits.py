"""Limits hold: by control groups as this machine has them, and by resource limits and
affinity without.
"""

import os
import shutil
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

import gpuyard
from gpuyard.node.launcher import Cgroup, ProcessLimits
from gpuyard.node.launcher.hierarchy import hierarchies
from gpuyard.node.launcher.limits import NO_GROUP, fall_back
from tests.support.wait import wait_until

MIB = 1 << 20
ALLOCATE = """
memory = bytearray({mib} << 20)
for page in range(0, len(memory), 4096): memory[page] = 1
"""
# Forks until it is refused, or 40 times: bounded, whatever the limit does.
BOMB = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
children = 0
try:
    for _ in range(40):
        if os.fork() == 0:
            time.sleep(100)
        children += 1
except BlockingIOError:
    print("refused after", children, flush=True)
time.sleep(100)
"""
SRC = str(Path(gpuyard.__file__).parents[1])


def have(controller: str) -> pytest.MarkDecorator:
    return pytest.mark.usefixtures(f"{controller}_groups")


def version_of(controller: str) -> int:
    return next(
        hierarchy.version
        for hierarchy in hierarchies()
        if controller in hierarchy.controllers
    )


def setting(process, *names: str) -> str:
    """The content of the first of these files that one of the attempt's groups has."""
    files = [
        path / name
        for name in names
        for path in process.cgroup.paths
        if (path / name).exists()
    ]
    return files[0].read_text().strip()


@have("memory")
def test_out_of_memory_is_told(start, ended, python):
    process = start(
        python,
        "-c",
        ALLOCATE.format(mib=200),
        limits=ProcessLimits(memory_bytes=64 * MIB),
    )
    assert process.enforcement["memory"].startswith("cgroup v")
    exit = ended(process)
    assert (exit.signal, exit.out_of_memory) == (9, True)
    assert 32 * MIB < process.cgroup.peak_memory_bytes() <= 64 * MIB


@have("memory")
def test_a_plain_sigkill_is_not_out_of_memory(start, ended):
    exit = ended(
        start("sh", "-c", "kill -9 $$", limits=ProcessLimits(memory_bytes=64 * MIB))
    )
    assert (exit.signal, exit.out_of_memory) == (9, False)


@have("memory")
def test_a_worker_killed_for_memory_makes_the_failure_one(start, ended, python):
    """The leader survives it in version 1 and fails for want of its worker; in version
    2 all go together.
    """
    worker = ALLOCATE.format(mib=200)
    program = (
        "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c',"
        f" {worker!r}]) != 0)"
    )
    exit = ended(
        start(python, "-c", program, limits=ProcessLimits(memory_bytes=64 * MIB))
    )
    assert exit.out_of_memory is True
    assert (exit.code, exit.signal) in ((1, None), (None, 9))


@have("memory")
def test_within_its_memory_a_job_runs(start, ended, python):
    exit = ended(
        start(
            python,
            "-c",
            ALLOCATE.format(mib=20),
            limits=ProcessLimits(memory_bytes=64 * MIB),
        )
    )
    assert (exit.code, exit.out_of_memory) == (0, False)


@have("memory")
@pytest.mark.parametrize("memory_bytes", [4096, MIB, 4 * MIB])
def test_memory_too_small_to_start_in_is_out_of_memory(start, ended, memory_bytes):
    """Whether the kernel strikes before the program runs or after."""
    exit = ended(
        start(
            "bash",
            "-c",
            "echo {1..1000000}",
            limits=ProcessLimits(memory_bytes=memory_bytes),
        )
    )
    assert (exit.signal, exit.out_of_memory) == (9, True)


@have("cpu")
def test_the_cpu_quota_is_set(start):
    process = start("sleep", "100", limits=ProcessLimits(cpus=1.5))
    assert process.enforcement == {"cpus": f"cgroup v{version_of('cpu')}"}
    if version_of("cpu") == 2:
        assert setting(process, "cpu.max") == "150000 100000"
    else:
        assert setting(process, "cpu.cfs_quota_us") == "150000"
        assert setting(process, "cpu.cfs_period_us") == "100000"


@have("pids")
def test_a_fork_bomb_is_stopped(start, python, log, tmp_path):
    go = tmp_path / "go"
    process = start(
        python, "-u", "-c", BOMB, str(go), limits=ProcessLimits(processes=10)
    )
    assert process.enforcement["processes"].startswith("cgroup v")
    assert setting(process, "pids.max") == "10"
    # What a program forks before it is in its group would come on top.
    go.touch()
    wait_until(lambda: log.read_text().endswith("\n"), what="the refusal")
    assert log.read_text().split()[-1] == "9", "with the leader nine make ten"


@have("memory")
@have("cpu")
@have("pids")
def test_all_limits_hold_together_and_from_the_start(start):
    process = start(
        "sleep",
        "100",
        limits=ProcessLimits(memory_bytes=64 * MIB, cpus=0.5, processes=20),
    )
    assert set(process.enforcement) == {"memory", "cpus", "processes"}
    assert setting(process, "memory.max", "memory.limit_in_bytes") == str(64 * MIB)
    assert all(
        str(process.pid) in (path / "cgroup.procs").read_text().split()
        for path in process.cgroup.paths
    )


def test_without_groups_memory_is_held_by_a_resource_limit(start, ended, python, log):
    process = start(
        python,
        "-c",
        ALLOCATE.format(mib=200),
        limits=ProcessLimits(memory_bytes=64 * MIB),
        cgroups=False,
    )
    assert process.cgroup is None
    assert process.enforcement == {"memory": "rlimit"}
    assert ended(process).code == 1
    assert "MemoryError" in log.read_text()


@have("memory")
@pytest.mark.parametrize("cgroups", [True, False])
def test_the_default_memory_limit_holds_where_there_are_groups(
    start, ended, python, log, cgroups
):
    """It begins after the start, so the program waits until it holds."""
    program = "import sys, time\nwhile not open(sys.argv[1]).read(): time.sleep(0.01)\n"
    go = log.with_name("go")
    go.touch()
    process = start(
        python,
        "-c",
        program + ALLOCATE.format(mib=200),
        str(go),
        limits=ProcessLimits(default_memory_bytes=64 * MIB),
        cgroups=cgroups,
    )
    go.write_text("go")
    exit = ended(process)
    if cgroups:
        assert process.enforcement["memory"].startswith("cgroup v")
        assert (exit.signal, exit.out_of_memory) == (9, True)
    else:
        assert process.enforcement == {"memory": NO_GROUP}
        assert exit.code == 0


def test_a_limit_of_its_own_replaces_the_default(start, ended, python):
    limits = ProcessLimits(memory_bytes=1 << 30, default_memory_bytes=64 * MIB)
    assert ended(start(python, "-c", ALLOCATE.format(mib=200), limits=limits)).code == 0


def test_the_resource_limit_lets_a_job_reserve_address_space(start, ended, python):
    """CUDA reserves hundreds of gigabytes that it never writes to: RLIMIT_AS would keep
    it from starting.
    """
    reserve = (
        "import mmap; mmap.mmap(-1, 1 << 38, flags=mmap.MAP_PRIVATE |"
        " mmap.MAP_ANONYMOUS, prot=0)"
    )
    assert (
        ended(
            start(
                python,
                "-c",
                reserve,
                limits=ProcessLimits(memory_bytes=64 * MIB),
                cgroups=False,
            )
        ).code
        == 0
    )


def test_without_groups_cpus_are_held_by_affinity(start, log, ended, python):
    show = "import os; print(len(os.sched_getaffinity(0)))"
    process = start(python, "-c", show, limits=ProcessLimits(cpus=0.5), cgroups=False)
    assert process.enforcement == {"cpus": "affinity"}
    assert ended(process).code == 0
    assert log.read_text() == "1\n"


def test_more_cpus_than_there_are_means_all():
    assert fall_back({"cpus": 1000}, "att_x").cpus == tuple(
        sorted(os.sched_getaffinity(0))
    )


@pytest.mark.skipif(os.getuid() != 0, reason="only root is not bound by RLIMIT_NPROC")
def test_root_is_told_that_its_processes_are_not_limited(start):
    process = start("sleep", "100", limits=ProcessLimits(processes=5), cgroups=False)
    assert process.enforcement == {"processes": "none: RLIMIT_NPROC does not bind root"}


@pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None,
    reason="needs root and setpriv (Debian: util-linux)",
)
def test_another_users_fork_bomb_is_stopped_by_a_resource_limit(attempt_id):
    """By an agent in a process of its own.

    54321 is nobody's user id: nothing else counts against its limit.
    """
    agent = """if True:
        import pathlib, sys, tempfile, time
        from gpuyard.node.launcher import LaunchRequest, ProcessLimits, find_attempt, spawn
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder, "log")
            argv = ("sh", "-c", "for i in $(seq 40); do sleep 100 & done; wait")
            environment = {"GPUYARD_ATTEMPT_ID": sys.argv[1]}
            process = spawn(LaunchRequest(sys.argv[1], argv, environment, pathlib.Path(folder), log, ProcessLimits(processes=10)))
            deadline = time.monotonic() + 10
            while process.exit() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            left = len(find_attempt(sys.argv[1]))
            print(process.enforcement, 5 <= left <= 10, "fork" in log.read_text(), process.kill_all())
    """
    # Python may be installed where only root may read.
    become = (
        "setpriv --reuid 54321 --clear-groups --inh-caps -all,+dac_read_search"
        " --ambient-caps +dac_read_search"
    )
    run = subprocess.run(
        [*become.split(), sys.executable, "-B", "-c", agent, attempt_id],
        env={**os.environ, "PYTHONPATH": SRC},
        capture_output=True,
        text=True,
        timeout=60,
    )
    # The shell has left when it could not fork; its children have not.
    assert run.stdout == "{'processes': 'rlimit'} True True []\n", run.stderr


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        ({"memory_bytes": 0}, "memory_bytes"),
        ({"memory_bytes": -1}, "memory_bytes"),
        ({"cpus": 0.001}, "cpus"),
        ({"cpus": float("nan")}, "cpus"),
        ({"cpus": float("inf")}, "cpus"),
        ({"processes": 0}, "processes"),
        ({"default_memory_bytes": 0}, "default_memory_bytes"),
    ],
)
def test_what_is_no_limit_is_refused(limits, field):
    with pytest.raises(ValueError, match=field):
        ProcessLimits(**limits)


@pytest.mark.parametrize("attempt_id", ["", ".", "..", "a/b", "../x", "a\0b"])
def test_a_group_is_only_made_for_a_file_name(attempt_id):
    with pytest.raises(ValueError, match="file name"):
        Cgroup.create(attempt_id, ProcessLimits())


groups_work = have("pids")


@groups_work
def test_a_group_is_found_again_and_removed(attempt_id):
    made = Cgroup.create(attempt_id, ProcessLimits(processes=5))
    assert made is not None
    again = Cgroup.open(attempt_id)
    assert again is not None
    assert set(again.paths) == set(made.paths)
    assert (again.procs(), again.empty(), again.oom_kills()) == ([], True, 0)
    assert again.remove()
    assert Cgroup.open(attempt_id) is None
    assert (again.procs(), again.empty(), again.kill(), again.remove()) == (
        [],
        True,
        True,
        True,
    )


@groups_work
def test_a_group_is_found_by_a_live_process_wherever_it_is(start):
    """After a restart the agent's own group, and with it the default place, may be
    another.
    """
    root = Path(f"/gpuyard-test-{uuid.uuid4().hex}")
    process = start("sleep", "100", cgroup_root=root)
    try:
        assert Cgroup.open(process.attempt_id) is None
        found = Cgroup.open(process.attempt_id, pid=process.pid)
        assert found is not None
        assert found.procs() == [process.pid]
    finally:
        process.kill_all()
        process.reap()
        assert process.cleanup()
        for hierarchy in hierarchies(root):
            with suppress(FileNotFoundError):  # no group was made in it
                hierarchy.root.rmdir()


@groups_work
def test_a_group_in_use_is_not_removed_and_those_below_it_are(start):
    process = start("sleep", "100")
    below = process.cgroup.paths[0] / "below"
    below.mkdir()
    assert not process.cgroup.remove()
    assert not below.exists()
    below.mkdir()
    child = start("sleep", "100")
    (below / "cgroup.procs").write_text(str(child.pid))
    assert set(process.cgroup.procs()) == {process.pid, child.pid}
    assert process.cgroup.kill()
    assert process.cgroup.empty()
    child.reap()


@have("pids")
def test_the_place_for_groups_is_made_anew_if_someone_removed_it(
    start, ended, attempt_id
):
    root = Path(f"/gpuyard-test-{uuid.uuid4().hex}")
    Cgroup.create(attempt_id, ProcessLimits(processes=5), root).remove()
    for hierarchy in hierarchies(root):
        hierarchy.root.rmdir()
    process = start("true", limits=ProcessLimits(processes=5), cgroup_root=root)
    assert process.enforcement == {"processes": f"cgroup v{version_of('pids')}"}
    assert ended(process).code == 0
    process.reap()
    assert process.cleanup()
    for hierarchy in hierarchies(root):
        hierarchy.root.rmdir()
