"""One attempt on its agent: what it is given, what bounds it, and how it is refused or
ended.
"""

import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpuyard.domain import wire
from gpuyard.domain.jobconfig import GpuSpec
from gpuyard.domain.reasons import Reason
from tests.support.node import Node, gone, make_node, wait_for

STAY = "import time; print('here', flush=True); time.sleep(1000)"


@pytest.fixture(scope="module")
def shared():
    """A node for tests that only start jobs."""
    with make_node() as node:
        yield node


def staying(node: Node, code: str = STAY, **fields) -> str:
    job = node.start(code, **fields)
    node.says(job, "here")
    return job


def test_the_job_knows_who_it_is_and_nothing_of_the_agents_settings():
    code = (
        "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if"
        " k.startswith(('GPUYARD', 'OMP', 'COLUMNS'))}))"
    )
    with make_node({"GPUYARD_TOKEN": "secret"}) as node:
        job = node.start(
            code, token=3, job_id="job_1", gpu_spec=GpuSpec(gpu_count=0, vcpus=1.5)
        )
        node.ended(job)
        hello = node.linked()
        expected = {
            "GPUYARD_JOB_ID": "job_1",
            "GPUYARD_ATTEMPT_ID": job,
            "GPUYARD_ATTEMPT": "3",
            "GPUYARD_NODE": hello.name,
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
        }
        assert eval(node.output(job)) == expected


def test_without_a_workdir_it_gets_a_folder_of_its_own(shared):
    code = "import os; print(os.getcwd(), os.listdir()); open('x', 'w')"
    for job in [shared.start(code, workdir=None) for _ in range(2)]:
        assert shared.ended(job).exit_code == 0
        assert (
            shared.output(job) == f"{shared.home.node / 'attempts' / job / 'work'} []\n"
        )


def test_what_it_used_is_told():
    code = """
        import pathlib, time
        data = bytearray(60 << 20)
        while time.process_time() < 0.3 or not pathlib.Path("go").exists():
            pass
        """
    with make_node(usage_s=0.1) as node:
        job = node.start(code)

        def used(name):
            points = [
                point
                for seen in node.sink.of(wire.UsageSeen, job)
                for point in seen.points
            ]
            return [point.value for point in points if point.name == f"system/{name}"]

        wait_for(
            lambda: max(used("memory_mb"), default=0) >= 50, "samples of its memory"
        )
        wait_for(
            lambda: max(used("cpu_cores"), default=0) > 0.1,
            "samples of its processor use",
        )
        (node.work / "go").touch()
        usage = node.ended(job).usage
    assert usage["cpu_s"] >= 0.25
    assert usage["peak_mb"] >= 50


@pytest.mark.parametrize(
    ("fields", "command", "reason"),
    [
        ({}, ("no-such-program",), "command_not_found"),
        ({}, ("/etc/passwd",), "not_executable"),
        ({"workdir": "/no/such/folder"}, ("true",), "workdir_missing"),
        ({}, ("true", "nul\0byte"), "invalid_argument"),
        ({"environment": {"A=B": "c"}}, ("true",), "invalid_argument"),
        (
            {"gpu_spec": GpuSpec(gpu_count=0, vcpus=0.001)},
            ("true",),
            "invalid_argument",
        ),
    ],
)
def test_what_cannot_be_started_is_an_end_with_a_reason(
    shared, fields, command, reason
):
    job = shared.submit(
        shared.config("", **fields).model_copy(update={"command": command})
    )
    ended = shared.ended(job)
    assert (ended.reason, ended.exit_code, ended.started_at) == (reason, None, None)
    assert ended.message
    assert shared.sink.of(wire.Started, job) == []


@contextmanager
def _full_disk(node: Node) -> Iterator[None]:
    """The agent's journal cannot grow meanwhile."""
    agent = node.pid("agent")
    hard = resource.prlimit(agent, resource.RLIMIT_FSIZE)[1]
    size = node.journal_path.stat().st_size
    resource.prlimit(agent, resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.prlimit(agent, resource.RLIMIT_FSIZE, (hard, hard))


def test_an_attempt_the_journal_cannot_take_is_refused_visibly(node):
    """An attempt that could not be adopted later must not be started."""
    assert node.ended(node.start("pass")).exit_code == 0
    with _full_disk(node):
        ended = node.ended(node.start("pass"))
    assert ended.reason == "spawn_failed"
    assert "journal" in ended.message
    assert node.ended(node.start("raise SystemExit(3)")).exit_code == 3


def test_a_journal_that_fills_up_later_does_not_keep_the_end_from_being_told(node):
    job = staying(node)
    with _full_disk(node):
        node.stop(job)
        ended = node.ended(job)
    assert (ended.stopped, ended.signal) == ("cancelled", signal.SIGTERM)
    assert "ended" not in node.journal(job)[-1]


def test_the_log_is_limited_at_its_front_and_its_offsets_stay():
    code = """
        import pathlib, time
        for number in range(60_000):
            print(f"line {number:9} " + 100 * "x", flush=number % 5000 == 0)
        print("the end", flush=True)
        while not pathlib.Path("go").exists():
            time.sleep(0.01)
        """
    with make_node() as node:
        job = node.start(code, log_limit_gb=1 / 1024)
        path = node.home.node / "attempts" / f"{job}.log"
        wait_for(
            lambda: path.exists() and path.stat().st_size == 60_000 * 116 + 8,
            "the whole log",
        )
        wait_for(lambda: path.stat().st_blocks * 512 < 2 << 20, "the cap")
        wait_for(
            lambda: any(
                seen.log_limit_gb for seen in node.sink.of(wire.UsageSeen, job)
            ),
            "the note",
        )
        log = node.loop.run(node.provider.get_job_logs(job))
        lines = log.splitlines()
        assert lines[-1] == "the end"
        assert 1 << 19 < len(log) < 2 << 20
        note = "[gpuyard: the log has reached its limit of 1 MB, so"
        assert lines[0].startswith(note)
        first = int(lines[1].split()[1])
        assert [int(line.split()[1]) for line in lines[1:-1]] == list(
            range(first, 60_000)
        )
        told = [report.log_limit_gb for report in node.sink.of(wire.UsageSeen, job)]
        assert [limit for limit in told if limit] == [1 / 1024]
        assert (
            node.loop.run(node.provider.get_job_logs(job, 2)).splitlines() == lines[-2:]
        )
        (node.work / "go").touch()
        assert node.ended(job).exit_code == 0


def test_stop_gives_term_then_grace_then_kill_and_the_first_reason_counts(shared):
    code = """
        import signal, time
        signal.signal(signal.SIGTERM, lambda *_: print("no", flush=True))
        print("here", flush=True)
        while True:
            time.sleep(0.01)
        """
    job = staying(shared, code, grace_s=0.3)
    shared.stop(job, "preempted")
    shared.says(job, "no")
    shared.stop(job, "cancelled")
    ended = shared.ended(job)
    assert (ended.stopped, ended.signal, ended.exit_code) == (
        "preempted",
        signal.SIGKILL,
        None,
    )
    assert shared.output(job).count("no") == 1


def test_a_stopped_job_that_was_suspended_is_ended_too(shared):
    job = staying(shared)
    os.kill(shared.started(job).pid, signal.SIGSTOP)
    shared.stop(job)
    assert shared.ended(job).signal == signal.SIGTERM


def test_what_never_came_is_over_when_it_is_stopped(shared):
    shared.stop("attempt_unheard_of")
    ended = shared.ended("attempt_unheard_of")
    assert (ended.stopped, ended.started_at) == ("cancelled", None)


def test_an_attempt_that_was_settled_and_forgotten_is_not_run_again(node):
    config = node.config("print('ran')")
    job = node.submit(config)
    node.ended(job)
    node.loop.run(node.provider.forget(node.linked().node_id, [job]))
    wait_for(lambda: not node.holds(job), "the record to go")
    # A server that has forgotten it, too, sends it once more.
    node.close()
    node.open()
    assert node.linked(2).attempts == []
    node.submit(config)
    node.ended(node.start("pass"))
    assert node.output(job) == "ran\n"
    assert len(node.sink.of(wire.Started, job)) == 1


def test_a_live_attempt_is_not_forgotten(shared):
    job = staying(shared)
    shared.loop.run(
        shared.provider.forget(shared.linked().node_id, [job, "attempt_unheard_of"])
    )
    shared.stop(job)
    assert shared.ended(job).stopped == "cancelled"


def test_a_silent_server_ends_only_what_says_so(node):
    patient = staying(node)
    impatient = staying(node, max_silence_s=0.2)
    pid = node.started(impatient).pid
    node.close()
    gone(pid)
    node.open()
    assert node.ended(impatient).stopped == Reason.NODE_SILENT
    assert node.sink.of(wire.Ended, patient) == []
    assert {(seen.attempt_id, seen.state) for seen in node.linked(2).attempts} >= {
        (patient, "running")
    }


@pytest.mark.real_agent
def test_the_silence_goes_on_when_the_agent_is_killed_meanwhile(node):
    """Else the server would give the attempt up, start another, and both would run."""
    job = staying(node, max_silence_s=3600)
    heard = node.home.node / "heard"
    wait_for(heard.exists, "the note of the link")
    pid = node.started(job).pid
    node.close()
    with node.without_agent():
        heard.write_text(str(time.monotonic() - 3601))
    gone(pid)
    node.open()
    assert node.ended(job).stopped == Reason.NODE_SILENT


@pytest.mark.real_agent
@pytest.mark.parametrize("content", ["", "soon", None])
def test_without_a_note_of_the_link_the_silence_begins_with_the_agent(node, content):
    job = staying(node, max_silence_s=3600)
    node.close()
    with node.without_agent():
        (node.home.node / "heard").unlink(missing_ok=True)
        if content is not None:
            (node.home.node / "heard").write_text(content)
    node.open()
    assert [seen.state for seen in node.linked(2).attempts] == ["running"]
    node.stop(job)
    assert node.ended(job).stopped == "cancelled"
