"""The agent's journal: what it says after a restart, after a tear and on a full
disk.
"""

import os
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import NoReturn

import pytest

from gpuyard.domain import wire
from gpuyard.domain.artifacts import ArtifactsSaved, SavedArtifact
from gpuyard.node import journal as module
from gpuyard.node.journal import AttemptJournal


def start(attempt_id="a1", **fields):
    return wire.StartAttempt(
        attempt_id,
        1,
        2,
        "job_1",
        ["python", "-c", "x\n'"],
        {"NAME": "naïve 火車"},
        **fields,
    )


ENDED = wire.Ended("a1", 9.0, 5.0, exit_code=7, usage={"cpu_s": 1.5})


@pytest.fixture
def journal(tmp_path):
    return AttemptJournal(tmp_path / "attempts")


def test_everything_noted_is_read_again(journal):
    wanted = start(
        stdin=bytes(range(256)),
        gpu_uuids=["GPU-1"],
        cpus=1.5,
        resume_args=["--from", "{path}"],
    )
    saved = wire.CheckpointSaved("a1", "a.pt", "ab" * 32, 10, 6.0, step=3)
    journal.intend(wanted, "boot_1")
    journal.note(
        "a1",
        pid=11,
        start_ticks=22,
        started_at=5.0,
        monotonic=3.5,
        limits={"memory": "cgroup v2"},
    )
    journal.note("a1", stopping="timed_out")
    journal.note_checkpoint(saved)
    left = ArtifactsSaved("a1", 7.0, [SavedArtifact("b.pt", "cd" * 32, 9)], ["x"])
    journal.note_artifacts(left)
    journal.note("a1", ended=ENDED)
    (record,) = AttemptJournal(journal.folder).records()
    assert record.artifacts == [left]
    assert (record.start, record.boot_id, record.ended, record.checkpoints) == (
        wanted,
        "boot_1",
        ENDED,
        [saved],
    )
    assert (record.pid, record.start_ticks, record.started_at, record.monotonic) == (
        11,
        22,
        5.0,
        3.5,
    )
    assert (record.limits, record.stopping) == ({"memory": "cgroup v2"}, "timed_out")


def test_what_is_forgotten_is_gone_but_for_its_log_which_says_that_it_ran(journal):
    journal.intend(start("a1"), "boot")
    journal.intend(start("a2"), "boot")
    journal.log_path("a1").write_text("output")
    (journal.private("a1") / "resume").mkdir(parents=True)
    for attempt_id in ("a1", "a2", "a3"):
        journal.forget(attempt_id)
    assert list(journal.records()) == []
    assert [journal.holds(attempt_id) for attempt_id in ("a1", "a2")] == [True, False]
    assert journal.log_path("a1").read_text() == "output"
    assert not (journal.private("a1") / "resume").exists()


def test_only_an_attempt_of_this_node_that_is_forgotten_is_settled(journal):
    journal.intend(start("a1"), "boot")
    journal.intend(start("a2"), "boot")
    for attempt_id in ("a1", "a2"):
        journal.log_path(attempt_id).touch()
    journal.forget("a1")
    names = ("a1", "a2", "a3")
    assert [journal.is_settled(name) for name in names] == [True, False, False]


def test_a_group_of_the_pool_is_that_of_the_last_attempt_that_began_there(journal):
    for attempt_id, group in (("a1", "g1"), ("a2", "g2"), ("a3", "g1"), ("a4", "")):
        journal.intend(start(attempt_id), "boot", group)
    groups = {
        record.start.attempt_id: record.first_group for record in journal.records()
    }
    assert groups == {"a1": "", "a2": "g2", "a3": "g1", "a4": ""}


TORN = '{"attempt":"a1",'


@pytest.mark.parametrize(
    "torn", ["{", TORN, TORN + '"ended":{"ty', TORN + '"ended":null}', "\0\0\0"]
)
def test_a_torn_last_line_is_cut_off_before_more_is_written(journal, torn):
    journal.intend(start(), "boot")
    journal.note("a1", pid=11)
    with (journal.folder / "journal").open("a") as file:
        file.write(torn)
    again = AttemptJournal(journal.folder)
    (record,) = again.records()
    assert (record.pid, record.ended) == (11, None)
    again.note("a1", ended=ENDED)
    (record,) = again.records()
    assert (record.pid, record.ended) == (11, ENDED)


def test_a_first_line_torn_means_that_nothing_was_started(journal):
    journal.intend(start(), "boot")
    path = journal.folder / "journal"
    os.truncate(path, path.stat().st_size - 5)
    again = AttemptJournal(journal.folder)
    assert list(again.records()) == []
    assert not again.holds("a1")


@pytest.mark.parametrize(
    "content",
    [
        "\n",
        "7\n",
        "[]\n",
        "{}\n",
        '{"attempt":7}\n',
        '{"attempt":"a0"}\n',
        '{"attempt":"a0","start":{},"boot_id":"b"}\n',
        '{"attempt":"a0","boot_id":"b"}\n',
        '{"attempt":"a0","start":1}\nx\n',
    ],
)
def test_a_line_that_cannot_be_read_hides_no_other_attempt(journal, content):
    path = journal.folder / "journal"
    path.write_text(content)
    journal.intend(start(), "boot")
    again = AttemptJournal(journal.folder)
    assert [record.start.attempt_id for record in again.records()] == ["a1"]
    assert path.read_text().startswith(content)


def test_a_fact_from_another_version_makes_the_record_unreadable_not_the_agent(journal):
    journal.intend(start(), "boot")
    journal.note("a1", a_field_of_tomorrow=1)
    assert list(journal.records()) == []


def test_a_long_journal_is_cleared_of_what_is_forgotten_only(journal, monkeypatch):
    monkeypatch.setattr("gpuyard.node.journal._LONGEST_BYTES", 20_000)
    journal = AttemptJournal(journal.folder)
    journal.intend(start("stays"), "boot")
    path = journal.folder / "journal"
    longest = 0
    for number in range(500):
        journal.intend(start(f"a{number}"), "boot")
        journal.note("stays", pid=number)
        journal.forget(f"a{number}")
        longest = max(longest, path.stat().st_size)
    assert longest < 150_000  # what stays has 500 lines of its own
    (record,) = AttemptJournal(journal.folder).records()
    assert (record.start.attempt_id, record.pid) == ("stays", 499)


@pytest.mark.parametrize("number", range(20))
def test_a_kill_while_the_journal_is_written_loses_nothing(tmp_path, number):
    """The child says what it has written; the next agent must find all of that."""
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        write_without_end(tmp_path, there)
    os.close(there)
    with os.fdopen(here) as heard:
        said = [heard.readline() for _ in range(3 + 7 * number)]
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        said += heard.readlines()
    started = [line.split()[1] for line in said if line.startswith("started")]
    forgotten = {line.split()[1] for line in said if line.startswith("forgot")}
    records = AttemptJournal(tmp_path).records()
    found = {record.start.attempt_id for record in records}
    # It may have written one line more than it has said.
    next_one = f"a{len(started)}"
    kept = set(started) - forgotten
    assert kept - {started[-1]} <= found <= kept | {next_one}


def write_without_end(folder: Path, told: int) -> NoReturn:
    """Note one attempt after the other and say so, in a child that is killed."""
    try:
        module._LONGEST_BYTES = 3000
        journal = AttemptJournal(folder)
        for number in count():
            name = f"a{number}"
            journal.intend(wire.StartAttempt(name, 1, 2, "job", ["true"], {}), "boot")
            os.write(told, f"started {name}\n".encode())
            if number % 3:
                journal.forget(name)
                os.write(told, f"forgot {name}\n".encode())
    finally:
        os._exit(1)


FULL = """
import resource, signal, sys
from pathlib import Path
from gpuyard.domain import wire
from gpuyard.node.journal import AttemptJournal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then a write beyond the limit is cut short, as on a full disk
journal = AttemptJournal(Path(sys.argv[1]))
journal.intend(wire.StartAttempt("a1", 1, 2, "job", ["true"], {}), "boot")
path = journal.folder / "journal"
size = path.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, resource.RLIM_INFINITY))
journal.note("a1", pid=12345, start_ticks=1234567890)
assert path.stat().st_size == size
try:
    journal.intend(wire.StartAttempt("a2", 1, 2, "job", ["true"], {"A": 1000 * "x"}), "boot")
except OSError:
    assert not journal.holds("a2")
else:
    raise AssertionError("the intent was not written")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.note("a1", pid=7)
assert [(record.start.attempt_id, record.pid) for record in journal.records()] == [("a1", 7)]
"""


def test_on_a_full_disk_nothing_is_half_written_and_an_intent_is_refused(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "not noted in the journal" in done.stdout + done.stderr


def test_what_is_noted_too_late_leaves_no_record_without_a_beginning(journal):
    journal.intend(start(), "boot")
    journal.forget("a1")
    journal.note("a1", input_ended=True)
    assert not AttemptJournal(journal.folder).holds("a1")
