"""What a spawned attempt is given: arguments, environment, folder, streams, signals;
and why one is refused.
"""

import errno
import json
import marshal
import os
import signal
import socket
import threading
from pathlib import Path

import psutil
import pytest

from gpuyard.node.launcher import (
    NEVER_STARTED,
    Cgroup,
    LaunchError,
    LaunchRequest,
    ProcessLimits,
    find_attempt,
    posix_spawn,
    prologue,
    spawn,
)
from tests.support.wait import wait_until

REPORT = """
import json, os, signal, sys
print(json.dumps({
    "argv": sys.argv[1:],
    "environment": {os.fsdecode(k): os.fsdecode(v) for k, v in os.environb.items()},
    "cwd": os.getcwd(),
    "stdin": sys.stdin.buffer.read().decode("latin-1"),
    "session": os.getsid(0) == os.getpid(),
    "blocked": [s.name for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "ignored": int(next(l for l in open("/proc/self/status") if l.startswith("SigIgn")).split()[1], 16),
    "descriptors": sorted(int(d) for d in os.listdir("/proc/self/fd"))[:-1],
}))
"""
# Python ignores these two by itself: that is not the launcher's doing.
PYTHON_IGNORES = 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)
AWKWARD = (
    "",
    " ",
    "a b",
    "'",
    '"',
    "$HOME",
    "`id`",
    "a\nb\n",
    "\\",
    "*",
    "-c",
    "--",
    "é",
    "\udcff",
    "\t",
)

UNLIMITED = ProcessLimits()
COUNTED = ProcessLimits(processes=200)
LIMITED = ProcessLimits(memory_bytes=1 << 32)
limited = pytest.mark.parametrize(
    "limits", [UNLIMITED, COUNTED, LIMITED], ids=["unlimited", "counted", "limited"]
)


def report(log: Path) -> dict:
    return json.loads(log.read_text())


@limited
@pytest.mark.parametrize("code", [0, 1, 2, 7, 125, 126, 127, 128, 130, 137, 254, 255])
def test_exit_codes_are_told(start, ended, limits, code):
    exit = ended(start("sh", "-c", f"exit {code}", limits=limits))
    assert (exit.code, exit.signal, exit.out_of_memory, exit.lost) == (
        code,
        None,
        False,
        False,
    )


@limited
@pytest.mark.parametrize(
    "signum",
    [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGPIPE, signal.SIGHUP],
)
def test_signals_are_told(start, ended, limits, signum):
    exit = ended(start("sh", "-c", f"kill -{int(signum)} $$", limits=limits))
    assert (exit.code, exit.signal, exit.out_of_memory, exit.lost) == (
        None,
        signum,
        False,
        False,
    )


@limited
def test_arguments_arrive_intact(start, ended, python, log, limits):
    assert ended(start(python, "-c", REPORT, *AWKWARD, limits=limits)).code == 0
    assert report(log)["argv"] == list(AWKWARD)


@limited
def test_environment_is_exactly_what_was_given(start, ended, log, limits):
    given = {
        "A.B": "dots",
        "x-y": "",
        "LONG": "z" * 100_000,
        "N": "a\nb=c",
        "PWD": "/elsewhere",
        "RAW": "\udcfe",
    }
    process = start("/usr/bin/env", "-0", environment=given, limits=limits)
    assert ended(process).code == 0
    entries = {f"{name}={value}" for name, value in given.items()} | {
        f"GPUYARD_ATTEMPT_ID={process.attempt_id}"
    }
    assert {
        os.fsdecode(entry) for entry in log.read_bytes().split(b"\0")[:-1]
    } == entries


@limited
def test_the_job_cannot_disturb_its_own_launch(start, ended, log, limits):
    """A library path or a preload made for the job is the job's business alone."""
    disturbing = {
        "PYTHONHOME": "/nowhere",
        "PYTHONPATH": "/nowhere",
        "LD_LIBRARY_PATH": "/nowhere",
    }
    assert (
        ended(start("/bin/echo", "fine", environment=disturbing, limits=limits)).code
        == 0
    )
    assert log.read_text() == "fine\n"


@limited
def test_a_job_is_born_clean(start, ended, python, log, limits):
    """A session of its own, nothing blocked or ignored, no descriptor but the three."""
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    leaking = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(leaking, True)
    try:
        assert ended(start(python, "-I", "-c", REPORT, limits=limits)).code == 0
    finally:
        os.close(leaking)
        signal.signal(signal.SIGHUP, ignored)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    found = report(log)
    assert found["session"] is True
    assert found["blocked"] == []
    assert found["ignored"] & ~PYTHON_IGNORES == 0
    if hasattr(posix_spawn._libc, "posix_spawn_file_actions_addclosefrom_np"):
        assert found["descriptors"] == [0, 1, 2]


@limited
def test_a_broken_pipe_ends_the_job(start, ended, limits):
    """Python ignores SIGPIPE; its children must not."""
    assert (
        ended(
            start("bash", "-c", "yes | head -1; exit ${PIPESTATUS[0]}", limits=limits)
        ).code
        == 128 + signal.SIGPIPE
    )


@limited
@pytest.mark.parametrize(
    "name", ["plain", "with space", "quote'\"s", "new\nline", "-dash", "$(id)", "é"]
)
def test_any_folder_can_be_the_working_directory(
    start, ended, python, log, tmp_path, limits, name
):
    workdir = tmp_path / name
    workdir.mkdir()
    assert ended(start(python, "-c", REPORT, workdir=workdir, limits=limits)).code == 0
    assert report(log)["cwd"] == str(workdir)


@limited
@pytest.mark.parametrize(
    "content",
    [b"", b"one\ntwo", bytes(range(256)) * 5000],
    ids=["empty", "text", "large"],
)
def test_stdin_holds_the_bytes(start, ended, python, log, limits, content):
    assert ended(start(python, "-c", REPORT, stdin=content, limits=limits)).code == 0
    assert report(log)["stdin"].encode("latin-1") == content


def test_stdin_is_empty_by_default(start, ended, python, log):
    assert ended(start(python, "-c", REPORT)).code == 0
    assert report(log)["stdin"] == ""


@limited
def test_both_streams_are_appended_to_a_private_log(start, ended, log, limits):
    for word in ("one", "two"):
        assert (
            ended(
                start("sh", "-c", f"echo {word}; echo {word} >&2", limits=limits)
            ).code
            == 0
        )
    assert log.read_text() == "one\none\ntwo\ntwo\n"
    assert log.stat().st_mode & 0o777 == 0o600


@limited
def test_the_program_is_looked_up_in_the_jobs_path(start, ended, log, tmp_path, limits):
    """The first executable one counts, and relative entries start from the working
    directory.
    """
    for folder, mode in (("first", 0o644), ("second", 0o755), ("third", 0o755)):
        (tmp_path / folder).mkdir()
        tool = tmp_path / folder / "tool"
        tool.write_text(f"#!/bin/sh\necho {folder} $0\n")
        tool.chmod(mode)
    path = f"/nowhere:{tmp_path}/first:second:{tmp_path}/third:/bin"
    assert ended(start("tool", environment={"PATH": path}, limits=limits)).code == 0
    assert log.read_text() == "second second/tool\n"


def test_a_program_is_found_from_the_working_directory(start, ended, log, tmp_path):
    (tmp_path / "run.sh").write_text("#!/bin/sh\necho $0\n")
    (tmp_path / "run.sh").chmod(0o755)
    assert ended(start("./run.sh")).code == 0
    assert ended(start("run.sh", environment={"PATH": ":/bin"})).code == 0
    assert log.read_text() == "./run.sh\n./run.sh\n"


def test_without_a_path_the_systems_folders_are_searched(start, ended):
    assert ended(start("true", environment={})).code == 0


def descriptors() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def refused(start, *argv: str, **launch) -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        start(*argv, **launch)
    return caught.value


@limited
@pytest.mark.parametrize(
    "name", ["no-such-command", "./no-such-file", "/no/such/file", "no/such/file"]
)
def test_command_not_found(start, limits, name):
    error = refused(start, name, limits=limits)
    assert error.reason == "command_not_found"
    assert name in str(error)


@limited
@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        ("#!/bin/sh\n", 0o644, "chmod"),
        ("#!/no/such/interpreter\n", 0o755, "interpreter"),
        ("echo a script without its first line\n", 0o755, "#!"),
        ("", 0o755, "#!"),
    ],
    ids=["mode", "interpreter", "no-interpreter", "empty"],
)
def test_not_executable(start, tmp_path, limits, content, mode, said):
    (tmp_path / "job").write_text(content)
    (tmp_path / "job").chmod(mode)
    error = refused(start, "./job", limits=limits)
    assert error.reason == "not_executable"
    assert "./job" in str(error)
    assert said in str(error)


def test_a_folder_is_no_command(start, tmp_path):
    (tmp_path / "job").mkdir()
    assert refused(start, "./job").reason == "command_not_found"


@limited
def test_workdir_missing(start, tmp_path, limits):
    (tmp_path / "file").touch()
    for workdir, said in (
        (tmp_path / "none", "does not exist"),
        (tmp_path / "file", "is not a directory"),
    ):
        error = refused(start, "true", workdir=workdir, limits=limits)
        assert error.reason == "workdir_missing"
        assert said in str(error)


def test_log_unwritable(start, tmp_path):
    for log in (tmp_path, tmp_path / "none" / "log"):
        assert refused(start, "true", log=log).reason == "log_unwritable"


@pytest.mark.parametrize(
    ("argv", "environment"),
    [
        ((), {}),
        (("",), {}),
        (("echo", "a\0b"), {}),
        (("echo", "\ud800"), {}),
        (("echo",), {"A": "a\0b"}),
        (("echo",), {"A=B": ""}),
        (("echo",), {"": "x"}),
        (("echo", "x" * 5_000_000), {}),
    ],
)
@limited
def test_what_no_process_can_be_given_is_refused(start, log, argv, environment, limits):
    error = refused(
        start,
        *argv,
        environment={"PATH": os.environ["PATH"], **environment},
        limits=limits,
    )
    assert error.reason == "invalid_argument"
    assert not log.exists() or log.read_bytes() == b""


def test_the_attempts_id_must_be_in_the_environment(tmp_path, log):
    with pytest.raises(LaunchError, match="GPUYARD_ATTEMPT_ID=att_x") as caught:
        spawn(
            LaunchRequest(
                "att_x", ("true",), {"GPUYARD_ATTEMPT_ID": "att_y"}, tmp_path, log
            )
        )
    assert caught.value.reason == "invalid_argument"


def children() -> set[int]:
    """The processes this one has started, zombies too; other tests' servers may be
    among them.
    """
    return {process.pid for process in psutil.Process().children()}


@limited
def test_a_refusal_leaves_nothing_behind(start, tmp_path, attempt_id, limits):
    """No descriptor, no child, no group, and the same id can be used again."""
    (tmp_path / "job").write_text("no interpreter")
    (tmp_path / "job").chmod(0o755)
    refused(start, "./job", limits=limits)
    before = descriptors()
    offspring = children()
    for _ in range(5):
        refused(start, "./job", attempt_id=attempt_id, limits=limits)
    assert descriptors() == before
    assert find_attempt(attempt_id) == []
    assert Cgroup.open(attempt_id) is None
    assert children() <= offspring


def test_a_process_without_a_descriptor_for_it_is_ended(
    start, monkeypatch, tmp_path, attempt_id
):
    """Short of descriptors the agent could not follow it; then it must not run at
    all.
    """

    def none_left(pid: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "pidfd_open", none_left)
    error = refused(start, "sh", "-c", "sleep 100; touch ran", attempt_id=attempt_id)
    assert error.reason == "spawn_failed"
    monkeypatch.undo()
    wait_until(
        lambda: find_attempt(attempt_id) == [], what="the end of what it had started"
    )
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("cut", [0, 10, -1])
def test_orders_cut_short_start_nothing(tmp_path, python, cut):
    """An agent that dies while it gives its orders must not leave a job without limits
    behind.
    """
    orders = {
        "groups": [],
        "rlimits": (),
        "cpus": (),
        "path": b"/bin/touch",
        "argv": [b"touch", b"ran"],
    }
    whole = marshal.dumps({**orders, "environment": {}})
    ours, theirs = socket.socketpair()
    with ours, theirs, Path(os.devnull).open("r+b") as null:
        streams = posix_spawn.Streams(null.fileno(), null.fileno(), theirs.fileno())
        argv = [os.fsencode(python), b"-I", b"-S", bytes(Path(prologue.__file__))]
        pid = posix_spawn.posix_spawn(argv[0], argv, [], bytes(tmp_path), streams)
        theirs.close()
        ours.sendall(whole[:cut])
        ours.close()
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == NEVER_STARTED
    assert not (tmp_path / "ran").exists()


def test_spawning_leaks_no_descriptor(start, ended):
    def once(limits: ProcessLimits, *, cgroups: bool) -> None:
        child = start("true", limits=limits, cgroups=cgroups)
        assert ended(child).code == 0
        child.reap()
        assert child.cleanup()

    ways = [
        (UNLIMITED, False, 400),
        (UNLIMITED, True, 60),
        (COUNTED, True, 20),
        (LIMITED, True, 20),
    ]
    for limits, cgroups, _ in ways:
        once(limits, cgroups=cgroups)
    before = descriptors()
    for limits, cgroups, times in ways:
        for _ in range(times):
            once(limits, cgroups=cgroups)
    assert descriptors() == before


def test_many_threads_may_spawn_at_once(start, ended, tmp_path):
    processes: dict[int, object] = {}

    def run(number: int) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        command = f'test "$(basename "$PWD")" = {number} && exit {number}'
        processes[number] = start(
            "sh", "-c", command, workdir=folder, log=folder / "log"
        )

    threads = [threading.Thread(target=run, args=(number,)) for number in range(1, 33)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: ended(process).code for number, process in processes.items()} == {
        n: n for n in range(1, 33)
    }


@limited
def test_the_process_becomes_the_program(start, limits):
    """Under the pid that it was started with, and found by the attempt's id."""
    child = start("sleep", "100", limits=limits)
    # The kernel lets `spawn` return in the last microseconds of the exec.
    wait_until(
        lambda: Path(f"/proc/{child.pid}/comm").read_text() == "sleep\n",
        what="its name",
    )
    wait_until(
        lambda: find_attempt(child.attempt_id) == [child.pid], what="its environment"
    )
