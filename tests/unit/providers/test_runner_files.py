"""What the runner's files may hold, once a job has written into them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.domain.jobconfig import JobResult, JobStatus
from gpuyard.domain.reasons import Reason
from gpuyard.providers.attempt_folder import AttemptFolder
from gpuyard.providers.runner_files import (
    BrokenFileError,
    plain,
    read_checkpoints,
    read_end,
    read_exit,
    read_grace,
    read_json,
    read_start,
)
from gpuyard.providers.slurm.records import SlurmRow
from gpuyard.providers.slurm.results import result_of
from gpuyard.storage.untrusted import UntrustedFileError
from tests.support.examples import examples

FOLDER = AttemptFolder(Path("/spool"), "attempt_1")
START = {"at": 1000.0, "host": "node1", "gpus": ["0"]}
END = {"exit_code": 0, "reason": "", "started_at": 1000.0, "ended_at": 1001.5}
SAVED = {
    "path": "step-1.pt",
    "step": 1,
    "at": 1000.5,
    "file": "000000-step-1.pt",
    "directory": False,
    "size": 5,
}
KEYS = sorted({*START, *END, *SAVED, "message", "usage", "job", "grace_s"})
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(), inner, max_size=5)
    ),
    max_leaves=12,
)
documents = st.builds(lambda value: json.dumps(value).encode(), values)
contents = (
    st.binary(max_size=50)
    | documents
    | st.builds(lambda text: documents_cut(text), documents)
    | st.just(UntrustedFileError("it is a link"))
)


def documents_cut(document: bytes) -> bytes:
    return document[: len(document) // 2]


def as_stored(result: JobResult) -> None:
    """Every database can keep it."""
    texts = [result.error_message or "", result.reason, result.node, *result.gpus]
    texts += result.usage
    for text in texts:
        assert "\0" not in text
        assert len(text.encode()) < 10_000
    times = [result.started_at, result.completed_at, *result.usage.values()]
    assert all(abs(value) < 1e19 for value in times if value is not None)
    assert result.exit_code is None or -128 <= result.exit_code <= 255


@settings(max_examples=examples(300))
@given(contents)
def test_any_content_is_read_or_is_one_kind_of_error(content: Any) -> None:
    for read in (read_start, read_checkpoints, lambda data: read_end("12", data)):
        try:
            found = read(content)
        except BrokenFileError as error:
            assert "in the folder of the attempt is broken" in str(error)
            continue
        if isinstance(found, JobResult):
            as_stored(found)
    as_stored(read_exit("12", read_json(content)))
    assert read_grace(content) >= 0


@settings(max_examples=examples(300))
@given(
    st.dictionaries(
        st.sampled_from(
            [FOLDER.exit, FOLDER.started, FOLDER.stop, FOLDER.again, FOLDER.messages]
        ),
        contents,
    ),
    st.sampled_from(["PENDING", "RUNNING", "FAILED", "COMPLETED", "CANCELLED"]),
)
def test_the_state_of_a_job_is_told_whatever_is_in_its_folder(
    files: Any, state: str
) -> None:
    result = result_of("12", SlurmRow("12", state), FOLDER, files)
    assert result
    as_stored(result)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda end: [], "Expected `object`, got `array`"),
        (lambda end: {"code": "x"}, "missing required field `exit_code`"),
        (lambda end: {**end, "exit_code": "x"}, "got `str` - at `$.exit_code`"),
        (lambda end: {**end, "exit_code": True}, "got `bool` - at `$.exit_code`"),
        (lambda end: {**end, "exit_code": 10**30}, "`$.exit_code`"),
        (lambda end: {**end, "ended_at": float("nan")}, "NaN is no number"),
        (lambda end: {**end, "ended_at": float("inf")}, "Infinity is no number"),
        (lambda end: {**end, "ended_at": 1e12}, "`$.ended_at`"),
        (lambda end: {**end, "usage": {"cpu_s": "x"}}, "`$.usage[...]`"),
    ],
)
def test_a_broken_end_says_what_is_wrong(
    change: Callable[[dict[str, Any]], Any], fault: str
) -> None:
    content = json.dumps(change(END)).encode()
    row = SlurmRow("12", "RUNNING")
    result = result_of("12", row, FOLDER, {FOLDER.exit: content})
    assert result
    assert (result.status, result.reason) == (JobStatus.FAILED, Reason.BROKEN_FILE)
    assert result.error_message
    assert "exit.json in the folder of the attempt is broken" in result.error_message
    assert fault in result.error_message


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"{", "it is not JSON"),
        (b"\xff\xfe\xfd", "it is not JSON"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b'{"exit_code": ' + b"1" * 10_000 + b"}", "it is not JSON"),
        (UntrustedFileError("a/exit.json is or lies below a link"), "below a link"),
    ],
)
def test_a_file_that_is_no_document_says_so(content: Any, fault: str) -> None:
    with pytest.raises(BrokenFileError, match=fault):
        read_end("12", content)
    assert read_json(content) == {}


@pytest.mark.parametrize(
    "name", ["../../etc/shadow", "/etc/shadow", "..", ".", "", "a/b", "a\0b", "\ud800"]
)
def test_a_checkpoint_is_a_name_in_its_folder(name: str) -> None:
    content = json.dumps([{**SAVED, "file": name}]).encode()
    with pytest.raises(BrokenFileError, match=r"checkpoints.json .* no name of a file"):
        read_checkpoints(content)


def test_what_an_honest_runner_writes_is_read_as_it_is() -> None:
    odd = {**SAVED, "path": "step-\udcff.pt", "file": "000001-step-\udcff.pt"}
    first, second = read_checkpoints(json.dumps([SAVED, odd]).encode())
    assert (first.path, first.step, first.file) == ("step-1.pt", 1, "000000-step-1.pt")
    assert (second.path, second.file) == ("step-\ufffd.pt", "000001-step-\udcff.pt")
    files: dict[Path, Any] = {FOLDER.started: json.dumps(START).encode()}
    running = result_of("12", SlurmRow("12", "RUNNING"), FOLDER, files)
    assert running
    assert (running.node, running.gpus, running.started_at) == ("node1", ("0",), 1000.0)
    files[FOLDER.exit] = json.dumps({**END, "message": "a\nb\x1b[31m"}).encode()
    ended = result_of("12", None, FOLDER, files)
    assert ended
    assert (ended.status, ended.completed_at) == (JobStatus.COMPLETED, 1001.5)
    assert ended.error_message == "a\nb\ufffd[31m"


def test_a_long_text_is_cut() -> None:
    assert len(plain("x" * 10_000)) == 2000


@pytest.mark.parametrize(("told", "ran_s"), [({"ran_s": 1.25}, 1.25), ({}, None)])
def test_what_the_runner_measured_is_kept(told, ran_s):
    """A runner of an earlier version measured nothing."""
    assert read_exit("job_1", {**END, **told}).ran_s == ran_s
