"""The keeper: a killed agent comes back, and no job's exit code is lost meanwhile."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import gpuyard
from gpuyard.node import keeper as keeper_module
from gpuyard.node.launcher import Exit, Process, adopt, find_attempt, procfs
from tests.support.wait import wait_until

KEEPER = Path(keeper_module.__file__)
SRC = Path(gpuyard.__file__).parents[1]

# Starts the jobs in `jobs.json` in its first life, notes them down, and then does what
# its argument says.
AGENT = """
import json, os, pathlib, signal, sys, time
sys.path.insert(0, {src!r})
folder, then = pathlib.Path(sys.argv[1]), sys.argv[2]
lives = folder / "lives"
first = not lives.exists()
with lives.open("a") as file:
    file.write(f"{{os.getpid()}} {{time.monotonic()}}\\n")
if first:
    from gpuyard.node.launcher import LaunchRequest, spawn
    jobs = json.loads((folder / "jobs.json").read_text())
    noted = []
    for number, argv in enumerate(jobs):
        attempt_id = f"att_{{sys.argv[3]}}_{{number}}"
        environment = {{"PATH": os.environ["PATH"], "GPUYARD_ATTEMPT_ID": attempt_id}}
        process = spawn(LaunchRequest(attempt_id, tuple(argv), environment, folder, folder / f"{{number}}.log"))
        noted.append([attempt_id, process.pid, process.start_ticks])
    (folder / "noted.new").write_text(json.dumps(noted))
    (folder / "noted.new").rename(folder / "noted")
if then == "stay":
    while True:
        signal.pause()
if then == "leave on SIGTERM":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    (folder / "ready").touch()
    while True:
        signal.pause()
sys.exit(int(then))
"""


class Node:
    """A node's folder with a keeper and the test's agent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_id = uuid.uuid4().hex[:12]
        self.keepers: list[subprocess.Popen[str]] = []
        (folder / "agent.py").write_text(AGENT.format(src=str(SRC)))
        (folder / "jobs.json").write_text("[]")

    def start(
        self, then: str = "stay", *, wrapper: tuple[str, ...] = ()
    ) -> subprocess.Popen[str]:
        """Start a keeper of an agent that does `then` once it has started its jobs."""
        agent = [
            sys.executable,
            str(self.folder / "agent.py"),
            str(self.folder),
            then,
            self.run_id,
        ]
        return self.keep(*agent, wrapper=wrapper)

    def keep(self, *agent: str, wrapper: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        command = [
            *wrapper,
            sys.executable,
            "-I",
            str(KEEPER),
            "--dir",
            str(self.folder),
            "--",
            *agent,
        ]
        keeper = subprocess.Popen(command, cwd="/", stdout=subprocess.PIPE, text=True)
        self.keepers.append(keeper)
        return keeper

    def lives(self) -> list[tuple[int, float]]:
        """The pid and start of each life of the agent."""
        file = self.folder / "lives"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        return [(int(pid), float(at)) for pid, at in (line.split() for line in lines)]

    def agent(self, life: int = 1) -> int:
        """The pid of the agent's n-th life, awaited."""
        return wait_until(
            lambda: len(self.lives()) >= life and self.lives()[life - 1][0],
            what=f"life {life}",
        )

    def noted(self) -> list[tuple[str, int, int]]:
        wait_until((self.folder / "noted").exists, what="the jobs to be noted down")
        return [tuple(job) for job in json.loads((self.folder / "noted").read_text())]

    def adopted(self) -> list[Process]:
        return [adopt(*job, self.folder / "exits") for job in self.noted()]

    def log(self) -> str:
        file = self.folder / "keeper.log"
        return file.read_text() if file.exists() else ""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    for keeper in node.keepers:
        keeper.kill()
        keeper.wait()
        keeper.stdout.close()
    jobs = json.loads((tmp_path / "jobs.json").read_text())
    attempts = [
        pid
        for number in range(len(jobs))
        for pid in find_attempt(f"att_{node.run_id}_{number}")
    ]
    for pid in attempts + [pid for pid, _ in node.lives()]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for process in node.adopted() if (tmp_path / "noted").exists() else []:
        if process.alive():
            process.kill_all()
        process.cleanup()


def exit_of(process: Process) -> Exit:
    """How it ended, once the keeper has written that down."""
    return wait_until(
        lambda: (found := process.exit()) and not found.lost and found,
        what="the keeper's record",
    )


def jobs(node: Node, *scripts: str) -> None:
    (node.folder / "jobs.json").write_text(
        json.dumps([["sh", "-c", script] for script in scripts])
    )


def test_a_killed_agents_jobs_keep_their_exit_codes(node):
    wait = "while [ ! -e go ]; do sleep 0.01; done; "
    jobs(
        node,
        wait + "exit 7",
        wait + "exit 0",
        wait + "kill -9 $$",
        "exit 9",
        "kill -15 $$",
    )
    node.start()
    processes = node.adopted()
    os.kill(node.agent(), signal.SIGKILL)
    node.agent(life=2)
    assert [process.alive() for process in processes] == [
        True,
        True,
        True,
        False,
        False,
    ]
    (node.folder / "go").touch()
    exits = [exit_of(process) for process in processes]
    assert exits == [
        Exit(code=7),
        Exit(code=0),
        Exit(signal=9),
        Exit(code=9),
        Exit(signal=15),
    ]
    record = json.loads(
        (
            node.folder
            / "exits"
            / f"{processes[0].pid}-{processes[0].start_ticks}.json"
        ).read_text()
    )
    assert (record["pid"], record["start_ticks"]) == (
        processes[0].pid,
        processes[0].start_ticks,
    )
    assert (record["code"], record["signal"], record["attempt"]) == (
        7,
        None,
        processes[0].attempt_id,
    )
    assert abs(record["at"] - time.time()) < 60


def test_of_200_quick_jobs_no_exit_code_is_lost(node):
    """Some end before their agent is killed, some after, some meanwhile; it reaps none
    of them.
    """
    jobs(node, *(f"sleep 0.{number % 7}; exit {number}" for number in range(200)))
    node.start()
    processes = node.adopted()
    os.kill(node.agent(), signal.SIGKILL)
    assert [exit_of(process).code for process in processes] == list(range(200))
    assert all(procfs.stat(process.pid) is None for process in processes)
    assert not any((node.folder / "exits").glob("*.new"))


def test_an_agent_that_keeps_dying_is_started_ever_more_slowly(node):
    node.start("1")
    node.agent(life=5)
    starts = [at for _, at in node.lives()]
    pauses = [after - before for before, after in itertools.pairwise(starts)]
    assert all(
        pause >= least
        for pause, least in zip(pauses, (0.1, 0.2, 0.4, 0.8), strict=False)
    )
    assert "exit code 1" in node.log()


def test_a_stable_life_starts_the_pauses_afresh(monkeypatch, tmp_path):
    """Thirty seconds are too long for a test: the clock is moved instead."""
    kept = keeper_module.Keeper(tmp_path, ["none"], lock=-1)
    clock = 0.0
    monkeypatch.setattr(keeper_module.time, "monotonic", lambda: clock)
    planned: list[float] = []
    for life in (1.0, 1.0, 1.0, 29.0, 31.0, 1.0, *[1.0] * 8):
        kept._started_at = clock
        clock = clock + life
        kept._plan_restart()
        planned.append(round(kept._start_at - clock, 3))
        clock = kept._start_at
    assert planned == [
        0.1,
        0.2,
        0.4,
        0.8,
        0.1,
        0.2,
        0.4,
        0.8,
        1.6,
        3.2,
        6.4,
        10.0,
        10.0,
        10.0,
    ]


def test_a_killed_agent_is_started_again(node):
    node.start()
    for life in (1, 2, 3):
        os.kill(node.agent(life), signal.SIGKILL)
    assert procfs.stat(node.agent(life=4)) is not None
    assert f"agent {node.agent(1)} ended: signal 9" in node.log()


def test_an_agent_that_cannot_be_started_is_tried_again(node):
    keeper = node.keep("/no/such/agent")
    wait_until(lambda: node.log().count("agent not started") >= 2, what="two tries")
    assert keeper.poll() is None


def test_a_second_keeper_leaves_at_once_and_says_so(node):
    first = node.start()
    node.agent()
    assert (node.folder / "keeper.lock").read_text() == f"{first.pid}\n"
    second = node.start()
    said, _ = second.communicate(timeout=60)
    assert second.returncode == 0
    assert str(first.pid) in said
    assert str(node.folder) in said
    assert first.poll() is None
    assert len(node.lives()) == 1


def test_an_agent_that_was_asked_to_stop_is_not_started_again(node):
    keeper = node.start("0")
    assert keeper.wait(60) == 0
    assert len(node.lives()) == 1
    assert "exit code 0" in node.log()


def test_the_keeper_of_a_stopped_agent_waits_for_its_jobs_and_lets_another_in(node):
    jobs(node, "while [ ! -e go ]; do sleep 0.01; done; exit 7")
    first = node.start("0")
    (process,) = node.adopted()
    wait_until(lambda: "not started again" in node.log(), what="the agent's end")
    second = node.start()
    node.agent(life=2)
    assert (node.folder / "keeper.lock").read_text() == f"{second.pid}\n"
    assert first.poll() is None
    (node.folder / "go").touch()
    assert exit_of(process) == Exit(code=7)
    assert first.wait(60) == 0
    assert second.poll() is None


def test_sigterm_is_passed_to_the_agent_and_ends_the_keeper_after_it(node):
    keeper = node.start("leave on SIGTERM")
    wait_until((node.folder / "ready").exists, what="the agent")
    keeper.terminate()
    assert keeper.wait(60) == 0
    assert len(node.lives()) == 1
    assert "exit code 3" in node.log()


def test_sigterm_between_two_lives_ends_the_keeper(node):
    keeper = node.keep("/no/such/agent")
    wait_until(lambda: "starts again in 0.4" in node.log(), what="a pause")
    keeper.terminate()
    assert keeper.wait(60) == 0


def test_a_second_sigterm_ends_the_keeper_at_once(node):
    jobs(node, "sleep 1000")
    keeper = node.start("leave on SIGTERM")
    wait_until((node.folder / "ready").exists, what="the agent")
    keeper.terminate()
    wait_until(lambda: "exit code 3" in node.log(), what="the agent's end")
    assert keeper.poll() is None
    keeper.terminate()
    assert keeper.wait(60) == 0
    assert node.adopted()[0].alive()


def test_a_hangup_changes_nothing_and_is_not_handed_on(node):
    keeper = node.start()
    agent = node.agent()
    keeper.send_signal(signal.SIGHUP)
    status = Path(f"/proc/{agent}/status").read_text()
    signals = dict(
        line.split(":\t") for line in status.splitlines() if line.startswith("Sig")
    )
    assert int(signals["SigBlk"], 16) == 0
    assert int(signals["SigIgn"], 16) & 1 << (signal.SIGHUP - 1) == 0
    os.kill(agent, signal.SIGKILL)
    node.agent(life=2)
    assert keeper.poll() is None


def test_the_keeper_stands_apart_and_the_agent_has_its_own_group(node):
    keeper = node.start()
    agent = node.agent()
    assert os.getsid(keeper.pid) == keeper.pid
    assert os.getsid(agent) == keeper.pid
    assert os.getpgid(agent) == agent


def test_the_agent_outlives_its_keeper(node):
    keeper = node.start()
    agent = node.agent()
    keeper.kill()
    keeper.wait()
    assert not procfs.stat(agent).dead


def test_exit_codes_are_kept_where_children_are_ignored(node):
    """SIGCHLD ignored by whoever starts the keeper would make the kernel reap for
    it.
    """
    jobs(node, "exit 7")
    node.start(wrapper=("env", "--ignore-signal=CHLD"))
    (process,) = node.adopted()
    os.kill(node.agent(), signal.SIGKILL)
    assert exit_of(process) == Exit(code=7)


def test_a_record_waits_for_the_disk(node):
    """Here: for a folder in whose place there is a file."""
    (node.folder / "exits").touch()
    jobs(node, "exit 7", "exit 8")
    keeper = node.start("0")
    processes = node.adopted()
    wait_until(lambda: "will try again" in node.log(), what="the first try")
    assert keeper.poll() is None
    (node.folder / "exits").unlink()
    assert [exit_of(process) for process in processes] == [Exit(code=7), Exit(code=8)]
    assert keeper.wait(60) == 0


def test_only_leaders_are_recorded(node):
    """What a job leaves in its own session is reaped without a word."""
    jobs(node, "sleep 0.3 & sleep 0.2 & exit 4", "(setsid sh -c 'exit 5' &) ; exit 6")
    node.start("0").wait(60)
    codes = [
        json.loads(file.read_text())["code"]
        for file in (node.folder / "exits").iterdir()
    ]
    assert sorted(codes) == [4, 5, 6]


def test_old_records_go_and_young_ones_stay(node):
    exits = node.folder / "exits"
    exits.mkdir()
    for name, age_s in (("1-1.json", 90_000), ("2-2.json", 80_000)):
        (exits / name).write_text("{}")
        os.utime(exits / name, (time.time() - age_s,) * 2)
    jobs(node, "exit 3")
    node.start("0").wait(60)
    assert not (exits / "1-1.json").exists()
    assert (exits / "2-2.json").exists()
    assert len(list(exits.iterdir())) == 2


def test_the_log_is_moved_away_when_it_is_full(node):
    (node.folder / "keeper.log").write_text("old line\n" * 120_000)
    node.start("0").wait(60)
    assert "old line" not in node.log()
    assert (node.folder / "keeper.log.1").read_text().startswith("old line")


def test_without_an_agent_there_is_nothing_to_keep(tmp_path):
    run = subprocess.run(
        [sys.executable, "-I", KEEPER, "--dir", tmp_path / "node"],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 2
    assert "command" in run.stderr
    assert not (tmp_path / "node").exists()
