"""`kill -9` of agent, keeper or both at bad moments: jobs go on, and how they ended is
known or said to be lost.
"""

import json
import os
import signal
import time
import uuid

import pytest

from gpuyard.domain import wire
from gpuyard.node.launcher import NEVER_STARTED, Cgroup, ProcessLimits
from gpuyard.node.launcher.procfs import children, stat, stats
from tests.support.node import Node, gone, wait_for

pytestmark = pytest.mark.real_agent

# Says that it is there, waits for a file, and leaves with the given code, or by the
# given signal if that is negative.
WAIT = """
import os, pathlib, sys, time
print("here", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.01)
code = int(sys.argv[1])
os.kill(os.getpid(), -code) if code < 0 else sys.exit(code)
"""


def go(node: Node) -> None:
    (node.work / "go").touch()


def waiting(node: Node, code: int = 7, before: str = "", **fields) -> str:
    """A job that runs, does something `before`, and waits for `go`."""
    attempt_id = node.start(before + WAIT, str(code), **fields)
    node.started(attempt_id)
    node.says(attempt_id, "here")
    return attempt_id


def leader(node: Node, attempt_id: str) -> int:
    return node.started(attempt_id).pid


def test_jobs_of_a_killed_agent_are_adopted(node):
    jobs = {waiting(node, code): code for code in (0, 7, -9)}
    agent = node.pid("agent")
    node.kill("agent")
    node.next_agent(agent)
    hello = node.linked(2)
    assert {(seen.attempt_id, seen.state) for seen in hello.attempts} == {
        (job, "running") for job in jobs
    }
    for job in jobs:
        wait_for(
            lambda job=job: len(node.sink.of(wire.Started, job)) == 2, "Started again"
        )
        first, again = node.sink.of(wire.Started, job)
        assert first == again
    go(node)
    for job, code in jobs.items():
        ended = node.ended(job)
        assert (ended.exit_code, ended.signal) == (
            (None, 9) if code < 0 else (code, None)
        )
        assert not ended.reason
        assert node.output(job) == "here\n"


def test_jobs_that_end_while_there_is_no_agent_keep_their_exit_codes(node):
    jobs = {waiting(node, code): code for code in (0, 7, -9)}
    pids = [leader(node, job) for job in jobs]
    with node.without_agent():
        go(node)
        for pid in pids:
            gone(pid)
    for job, code in jobs.items():
        ended = node.ended(job)
        assert (ended.exit_code, ended.signal, ended.reason) == (
            (None, 9, "") if code < 0 else (code, None, "")
        )


def test_an_agent_killed_again_and_again_loses_nothing(node):
    job = waiting(node, 7)
    for _ in range(3):
        agent = node.pid("agent")
        node.kill("agent")
        node.next_agent(agent)
    go(node)
    assert node.ended(job).exit_code == 7


def test_killed_between_intent_and_spawn_the_job_is_started_by_the_next_agent(node):
    model = node.start("pass")
    node.ended(model)
    (intent, *_) = node.journal(model)
    intent["start"]["attempt_id"] = "attempt_intended"
    with node.without_agent():
        node.rewrite_journal("attempt_intended", [intent])
    assert node.ended("attempt_intended").exit_code == 0


def test_killed_between_spawn_and_note_the_job_is_found_by_its_environment(node):
    job = waiting(node, 7)
    pid = leader(node, job)
    with node.without_agent():
        node.rewrite_journal(job, node.journal(job)[:1])
    wait_for(lambda: len(node.sink.of(wire.Started, job)) == 2, "Started again")
    assert node.sink.of(wire.Started, job)[1].pid == pid
    go(node)
    assert node.ended(job).exit_code == 7
    assert node.output(job) == "here\n"


def test_killed_between_spawn_and_note_a_job_that_ended_since_keeps_its_exit_code(node):
    job = waiting(node, 7)
    with node.without_agent():
        node.rewrite_journal(job, node.journal(job)[:1])
        go(node)
        gone(leader(node, job))
    ended = node.ended(job)
    assert (ended.exit_code, ended.reason) == (7, "")
    assert node.output(job) == "here\n"


def test_killed_as_it_started_a_job_nobody_knows_about_is_lost(node):
    job = waiting(node, 7)
    with node.without_agent():
        node.rewrite_journal(job, node.journal(job)[:1])
        node.kill("keeper")
        os.kill(leader(node, job), signal.SIGKILL)
        gone(leader(node, job))
    ended = node.ended(job)
    assert (ended.exit_code, ended.reason) == (None, "exit_status_lost")


def test_killed_as_it_started_a_job_after_both_keepers_of_two_agents_the_job_is_lost(
    node,
):
    """Neither agent has a keeper then: that the parent of both is the same must not be
    taken for one keeper's word.
    """
    keeper = node.pid("keeper")
    agent = node.pid("agent")
    node.kill("keeper")
    wait_for(lambda: node.pid("keeper") != keeper, "a new keeper")
    wait_for(lambda: children(node.pid("keeper")), "an agent that waits for its turn")
    job = waiting(node, 7)
    pid = leader(node, job)
    os.kill(agent, signal.SIGSTOP)
    node.rewrite_journal(job, node.journal(job)[:1])
    os.kill(pid, signal.SIGKILL)
    node.kill("keeper")
    os.kill(agent, signal.SIGKILL)
    ended = node.ended(job)
    assert (ended.exit_code, ended.reason) == (None, "exit_status_lost")
    assert node.output(job) == "here\n"


def test_an_agent_whose_keeper_was_killed_lives_on(node):
    job = waiting(node, 7)
    later = waiting(node, 8)
    keeper = node.pid("keeper")
    agent = node.pid("agent")
    node.kill("keeper")
    wait_for(lambda: node.pid("keeper") != keeper, "a new keeper")
    assert node.pid("agent") == agent
    after = node.start("raise SystemExit(3)")
    assert node.ended(after).exit_code == 3
    os.kill(leader(node, job), signal.SIGTERM)
    assert node.ended(job).signal == signal.SIGTERM
    # The new keeper's agent waits for its turn, which comes when the old one dies.
    node.kill("agent")
    node.next_agent(agent)
    go(node)
    assert node.ended(later).reason == "exit_status_lost"
    assert node.ended(node.start("raise SystemExit(4)")).exit_code == 4


def test_with_keeper_and_agent_killed_a_running_job_is_adopted_and_its_exit_lost(node):
    running = waiting(node, 7)
    over = waiting(node, 8)
    pid = leader(node, over)
    node.kill("keeper", "agent")
    os.kill(pid, signal.SIGKILL)
    gone(pid)
    ended = node.ended(over)
    assert (ended.exit_code, ended.signal, ended.reason) == (
        None,
        None,
        "exit_status_lost",
    )
    assert "both killed" in ended.message
    assert node.sink.of(wire.Ended, running) == []
    go(node)
    assert node.ended(running).reason == "exit_status_lost"
    assert node.output(running) == "here\n"


def test_what_a_job_ran_ends_with_it_and_not_with_the_return_of_its_agent(node):
    job = waiting(node, 7)
    pid = leader(node, job)
    with node.without_agent():
        os.kill(pid, signal.SIGTERM)
        gone(pid)
        (record,) = wait_for(
            lambda: list((node.home.node / "exits").glob(f"{pid}-*.json")),
            "the keeper's record",
        )
        ended_boot_s = json.loads(record.read_text())["boot_s"]
        began_boot_s = next(
            facts["boot_s"] for facts in node.journal(job) if "boot_s" in facts
        )
    assert node.ended(job).ran_s == pytest.approx(ended_boot_s - began_boot_s)


def test_a_job_that_is_found_ran_since_its_process_began(node):
    """The agent was killed before it noted when it started the job."""
    job = waiting(node, 7)
    process = stat(leader(node, job))
    with node.without_agent():
        intent, *_ = node.journal(job)
        node.rewrite_journal(job, [intent])
    (noted,) = wait_for(
        lambda: [facts for facts in node.journal(job) if "boot_s" in facts],
        "the next agent to find it",
    )
    assert noted["boot_s"] == process.start_ticks / os.sysconf("SC_CLK_TCK")
    go(node)
    assert node.ended(job).ran_s > 0


def test_what_a_job_started_in_its_first_moment_ends_with_it_whoever_the_agent_is(node):
    """The job kills its agent at once, while it is in a control group of the agent's
    pool, and leaves behind what only that group knows.
    """
    agent = node.pid("agent")
    code = """
        import os, pathlib, signal, time
        def daemon():
            os.setsid()
            if os.fork() == 0:
                os.execve("/bin/sleep", ["sleep", "1000"], {})
            os._exit(0)
        group = pathlib.Path("/proc/self/cgroup")
        for _ in range(1000):
            if "/gpuyard/" in group.read_text():
                break  # until then, nothing holds it
            time.sleep(0.001)
        os.kill(os.getppid(), signal.SIGKILL)
        if os.fork() == 0:
            daemon()
        while not pathlib.Path("go").exists():
            time.sleep(0.01)
        """
    job = node.start(code)
    node.next_agent(agent)
    go(node)
    assert node.ended(job).exit_code == 0
    assert not [
        process.pid
        for process in stats()
        if process.parent == node.pid("keeper")
        and not process.dead
        and process.pid != node.pid("agent")
    ]


# Leaves its parent, its session and its environment, once its group holds it.
DAEMON = """
import os, pathlib, time
group = pathlib.Path("/proc/self/cgroup")
while "/gpuyard/" not in group.read_text():
    time.sleep(0.001)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        pathlib.Path("daemon").write_text(str(os.getpid()))
        os.execve("/bin/sleep", ["sleep", "1000"], {})
    os._exit(0)
"""


def test_a_lost_job_takes_along_what_its_groups_hold(node):
    job = waiting(node, 7, before=DAEMON)
    said = node.work / "daemon"
    wait_for(lambda: said.exists() and said.read_text(), "the daemon")
    daemon = int(said.read_text())
    pid = leader(node, job)
    with node.without_agent():
        node.rewrite_journal(job, node.journal(job)[:1])
        node.kill("keeper")
        os.kill(pid, signal.SIGKILL)
        gone(pid)
    assert node.ended(job).reason == "exit_status_lost"
    gone(daemon)


def test_killed_between_spawn_and_note_the_end_is_the_first_process_s(node):
    """What that has left behind carries the id of the attempt, too, and still runs."""
    child = """
import subprocess
subprocess.Popen(["sleep", "1000"])
"""
    job = waiting(node, 7, before=child)
    with node.without_agent():
        node.rewrite_journal(job, node.journal(job)[:1])
        go(node)
        gone(leader(node, job))
    assert node.ended(job).exit_code == 7


def test_a_launch_that_was_interrupted_twice_is_not_taken_for_the_first_one(node):
    """Else the program of the second would be killed as what the first has left."""
    model = node.start("pass")
    node.ended(model)
    (intent, *_) = node.journal(model)
    intent["start"]["attempt_id"] = "attempt_again"
    exits = node.home.node / "exits"
    record = {"pid": 999999, "start_ticks": 1, "code": None, "at": time.time()}
    record |= {"signal": int(NEVER_STARTED), "attempt": "attempt_again"}
    with node.without_agent():
        exits.mkdir(exist_ok=True)
        (exits / "999999-1.json").write_text(json.dumps(record))
        (node.home.node / "attempts" / "attempt_again.log").touch()
        node.rewrite_journal("attempt_again", [intent])
    assert node.ended("attempt_again").exit_code == 0
    pids = [line["pid"] for line in node.journal("attempt_again") if "pid" in line]
    assert pids[:2] == [999999, None]
    assert pids[2] not in (999999, None)


@pytest.mark.usefixtures("pids_groups")
def test_the_next_agent_removes_the_groups_of_attempts_that_are_over(node):
    job = node.start("pass")
    node.ended(job)
    left = Cgroup.create(job, ProcessLimits(processes=5))
    others = Cgroup.create(f"attempt_{uuid.uuid4().hex}", ProcessLimits(processes=5))
    assert left is not None and others is not None
    agent = node.pid("agent")
    with node.without_agent():
        node.rewrite_journal(job, [])
    node.next_agent(agent)
    wait_for(lambda: not any(path.exists() for path in left.paths), "their removal")
    assert all(path.exists() for path in others.paths)
    others.remove()


def test_after_a_reboot_jobs_are_lost_with_that_reason(node):
    job = waiting(node, 7)
    with node.without_agent():
        intent, *facts = node.journal(job)
        os.kill(leader(node, job), signal.SIGKILL)
        gone(leader(node, job))
        node.rewrite_journal(job, [intent | {"boot_id": "another-boot"}, *facts])
    ended = node.ended(job)
    assert (ended.exit_code, ended.reason) == (None, "node_rebooted")


def test_an_end_that_was_noted_and_not_reported_is_reported_and_cleaned_up(node):
    """The agent was killed right after it had noted the end: what the job left behind
    still runs.
    """
    code = """
        import subprocess, sys
        child = "import time; print('child', flush=True); time.sleep(1000)"
        print(subprocess.Popen([sys.executable, "-c", child]).pid, flush=True)
        sys.stdin.read()
        import time; time.sleep(1000)
        """
    job = node.start(code)
    node.says(job, "child")
    child = int(node.output(job).split()[0])
    with node.without_agent():
        os.kill(leader(node, job), signal.SIGKILL)
        gone(leader(node, job))
        ended = {
            "ended": {
                "type": "Ended",
                "attempt_id": job,
                "at": 2.0,
                "started_at": 1.0,
                "exit_code": 5,
            }
        }
        node.rewrite_journal(job, [*node.journal(job), ended])
    assert node.ended(job).exit_code == 5
    gone(child)


def test_a_next_attempt_that_was_noted_and_never_begun_is_not_promised(node):
    """The agent was killed between noting who takes the place and beginning it: its
    server has to send that anew.
    """
    job = waiting(node, 7)
    with node.without_agent():
        ended = {
            "type": "Ended",
            "attempt_id": job,
            "at": 2.0,
            "started_at": 1.0,
            "exit_code": 5,
        }
        node.rewrite_journal(
            job,
            [
                *node.journal(job),
                {"ended": {**ended, "successor": "attempt_nobody_began"}},
            ],
        )
    assert (node.ended(job).exit_code, node.ended(job).prefetched_next) == (5, "")


def test_a_line_torn_by_the_kill_is_cut_off_and_the_rest_is_kept(node):
    job = waiting(node, 7)
    # The second time shows that what was written after the torn line is whole.
    for _ in range(2):
        with node.without_agent(), node.journal_path.open("a") as file:
            file.write(f'{{"attempt":"{job}","ended":{{"type":"En')
        wait_for(lambda: node.sink.of(wire.Started, job), "Started")
    go(node)
    assert node.ended(job).exit_code == 7
    assert node.journal(job)[-1]["ended"]["exit_code"] == 7


def test_a_journal_that_cannot_be_read_does_not_keep_the_others_from_being_adopted(
    node,
):
    job = waiting(node, 7)
    with node.without_agent():
        written = node.journal_path.read_bytes()
        damaged = b'{"attempt":"attempt_damaged","start":7}\n'
        noise = b"\xff\xfe\n\n"
        torn = b'{"attempt":"attempt_torn","start":{"attempt'
        node.journal_path.write_bytes(damaged + noise + written + torn)
    go(node)
    assert node.ended(job).exit_code == 7
    # Was never started: it may be.
    torn = node.start("raise SystemExit(2)", attempt_id="attempt_torn")
    assert node.ended(torn).exit_code == 2


def test_a_timeout_counts_from_the_start_whoever_the_agent_is(node):
    job = waiting(node, timeout_minutes=100, grace_s=0.2)
    with node.without_agent():
        lines = [
            (
                line | {"monotonic": time.monotonic() - 6000}
                if "monotonic" in line
                else line
            )
            for line in node.journal(job)
        ]
        node.rewrite_journal(job, lines)
    ended = node.ended(job)
    assert (ended.stopped, ended.signal) == ("timed_out", signal.SIGTERM)


def test_a_stop_that_was_under_way_is_carried_through_by_the_next_agent(node):
    code = """
        import signal, time
        signal.signal(signal.SIGTERM, lambda *_: print("no", flush=True))
        print("here", flush=True)
        while True:
            time.sleep(0.01)
        """
    job = node.start(code, grace_s=1.0)
    node.says(job, "here")
    node.stop(job)
    node.says(job, "no")
    agent = node.pid("agent")
    node.kill("agent")
    node.next_agent(agent)
    ended = node.ended(job)
    assert (ended.stopped, ended.signal) == ("cancelled", signal.SIGKILL)


def test_progress_after_an_adoption_has_the_same_points(node):
    code = """
        import pathlib, time
        for step in range(1, 41):
            print(f"step {step}: train loss {10 / step:.4f}, val loss {11 / step:.4f}", flush=True)
        while not pathlib.Path("go").exists():
            time.sleep(0.01)
        print("step 41: train loss 0.2000, val loss 0.3000", flush=True)
        """
    job = node.start(code)

    def points(reports):
        return {
            (point.name, point.n): (point.step, point.value)
            for report in reports
            for point in report.points
        }

    wait_for(
        lambda: ("train_loss", 39) in points(node.sink.of(wire.ProgressSeen)),
        f"{node.sink.reports}",
    )
    before = len(node.sink.of(wire.ProgressSeen))
    agent = node.pid("agent")
    node.kill("agent")
    node.next_agent(agent)
    go(node)
    node.ended(job)
    seen = node.sink.of(wire.ProgressSeen)
    first = points(seen[:before])
    again = points(seen[before:])
    assert first == {key: value for key, value in again.items() if key in first}
    assert again.keys() - first.keys() == {("train_loss", 40), ("val_loss", 40)}
    assert seen[-1].progress["step"] == 41
