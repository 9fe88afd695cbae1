"""A log is read by offset, from its end, and after its front has been given back to the
disk.
"""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.storage import logfile
from gpuyard.storage.logfile import LogFile
from tests.support.examples import examples

KIB = 1024
BLOCK = 4 * KIB  # what the file systems these tests run on round a hole to

lines_of_text = (
    st.binary(max_size=40)
    | st.just(b"\n")
    | st.sampled_from([b"x" * 5000, b"\r" * 3000, b"\n" * 2000])
)
texts = st.lists(lines_of_text, max_size=40).map(b"\n".join)


def holes_work(folder: Path) -> bool:
    file = folder / "probe"
    file.write_bytes(b"x" * 4 * BLOCK)
    return LogFile(file).cap(BLOCK) and LogFile(file).start() > 0


def model_tail(content: bytes, lines: int, first: int = 0) -> tuple[int, bytes]:
    """The last lines of `content[first:]`, taken apart and put together again."""
    kept = content[first:].split(b"\n")
    pieces = [piece + b"\n" for piece in kept[:-1]] + ([kept[-1]] if kept[-1] else [])
    data = b"".join(pieces[-lines:] if lines else [])
    return len(content) - len(data), data


def model_start(content: bytes, hole: int) -> int:
    """Where the first whole line begins after a hole of so many bytes, looked for in
    one block.
    """
    return hole and hole + content[hole : hole + 64 * KIB].find(b"\n") + 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("logs")


def written(folder: Path, content: bytes) -> LogFile:
    file = folder / uuid.uuid4().hex
    file.write_bytes(content)
    return LogFile(file)


@given(content=texts, offset=st.integers(0, 30_000), limit=st.integers(0, 30_000))
@settings(max_examples=examples(150), deadline=None)
def test_read_is_a_slice(folder, content, offset, limit):
    log = written(folder, content)
    assert log.size() == len(content)
    assert log.start() == 0
    assert log.read(offset, limit) == (offset, content[offset : offset + limit])


@given(content=texts, lines=st.integers(0, 50))
@settings(max_examples=examples(200), deadline=None)
def test_tail_is_the_last_lines(folder, content, lines):
    assert written(folder, content).tail(lines) == model_tail(content, lines)


@given(content=texts, lines=st.integers(1, 50), limit=st.integers(0, 9000))
@settings(max_examples=examples(150), deadline=None)
def test_a_tail_is_cut_to_its_limit(folder, content, lines, limit):
    offset, data = model_tail(content, lines, max(0, len(content) - limit))
    assert written(folder, content).tail(lines, limit) == (offset, data)
    assert len(data) <= limit


@given(
    content=st.lists(lines_of_text, min_size=5, max_size=40).map(b"\n".join),
    caps=st.lists(st.integers(0, 60_000), min_size=1, max_size=3),
    offset=st.integers(0, 60_000),
    lines=st.integers(0, 50),
)
@settings(max_examples=examples(200), deadline=None)
def test_after_a_cap_offsets_mean_what_they_meant(folder, content, caps, offset, lines):
    if not holes_work(folder):
        pytest.skip("this file system cannot punch holes")
    log = written(folder, content)
    hole = 0
    for cap in caps:
        assert log.cap(cap)
        hole = max(hole, (len(content) - cap) // BLOCK * BLOCK)
    start = model_start(content, hole) if hole < len(content) else len(content)
    assert log.size() == len(content)
    assert log.start() == start
    begin = max(offset, start)
    assert log.read(offset, 10_000) == (begin, content[begin : begin + 10_000])
    assert log.tail(lines) == model_tail(content, lines, start)


def test_a_cap_gives_the_space_back(folder):
    if not holes_work(folder):
        pytest.skip("this file system cannot punch holes")
    log = written(folder, b"a line\n" * 200_000)
    with log.path.open("rb") as file:
        os.fsync(file.fileno())  # only then are the blocks counted
    before = log.path.stat().st_blocks
    assert log.cap(100 * KIB)
    assert log.path.stat().st_blocks * 512 <= 128 * KIB < before * 512


def test_a_writer_goes_on_at_the_end_while_the_front_goes(folder):
    """As a job does: with one descriptor, opened before."""
    writer = "import sys\nfor i in range(60000): print(f'{i:06}', flush=i % 100 == 0)"
    file = written(folder, b"")
    with file.path.open("ab") as output:
        process = subprocess.Popen([sys.executable, "-c", writer], stdout=output)
    offset = 0
    seen = []
    while process.poll() is None or offset < file.size():
        begin, data = file.read(offset, 50_000)
        assert begin == offset or begin % 7 == 0
        seen += data.split()
        offset = begin + len(data)
        file.cap(64 * KIB)
    assert process.returncode == 0
    assert file.size() == 60_000 * 7
    assert seen[-1] == b"059999"
    numbers = [int(number) for number in seen if len(number) == 6]
    assert numbers == sorted(numbers)


@given(
    content=st.lists(lines_of_text, min_size=5, max_size=40).map(b"\n".join),
    cap=st.integers(0, 60_000),
)
@settings(max_examples=examples(100), deadline=None)
def test_a_note_stands_where_the_front_was(folder, content, cap):
    """It takes the place of the rest of a line; all whole lines stay."""
    if not holes_work(folder):
        pytest.skip("this file system cannot punch holes")
    log = written(folder, content)
    assert log.cap(cap)
    before = log.start()
    kept = log.read(0, len(content))[1]
    log.note_gap("[a note]")
    assert log.size() == len(content)
    note = b"[a note]\n"
    if before - len(note) <= BLOCK:
        assert log.read(0, len(content)) == (before, kept)
        return
    assert log.read(0, len(content)) == (before - len(note), note + kept)


@pytest.mark.parametrize("content", [b"", b"short\n"])
def test_a_cap_beyond_the_size_changes_nothing(folder, content):
    log = written(folder, content)
    assert log.cap(len(content))
    assert log.path.read_bytes() == content


def test_a_line_longer_than_a_block_starts_where_the_hole_ends(folder):
    if not holes_work(folder):
        pytest.skip("this file system cannot punch holes")
    log = written(folder, b"\r50%" * 100_000 + b"\nend\n")
    assert log.cap(200 * KIB)
    start = log.start()
    assert start % BLOCK == 0
    assert log.tail(2)[0] == start
    assert log.tail(1) == (log.size() - 4, b"end\n")


@pytest.mark.skipif(
    os.getuid() != 0, reason="needs root to mount a ramfs, which has no holes"
)
def test_a_file_system_without_holes_keeps_the_file(tmp_path):
    script = """if True:
        import pathlib, subprocess, sys
        sys.path.insert(0, sys.argv[1])
        from gpuyard.storage.logfile import LogFile
        subprocess.run(["mount", "-t", "ramfs", "none", sys.argv[2]], check=True)
        log = LogFile(pathlib.Path(sys.argv[2], "log"))
        log.path.write_bytes(b"line\\n" * 10_000)
        print(log.cap(4096), log.start(), log.size(), log.tail(1))
    """
    source = Path(logfile.__file__).parents[2]
    # A mount namespace of its own leaves nothing to unmount.
    command = [
        "unshare",
        "--mount",
        sys.executable,
        "-c",
        script,
        str(source),
        str(tmp_path),
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.stdout == "False 0 50000 (49995, b'line\\n')\n", run.stderr


def test_a_truncated_log_is_read_to_its_new_end(folder):
    """A job may truncate what it writes to (`: > /dev/stdout`)."""
    log = written(folder, b"one\ntwo\n")
    os.truncate(log.path, 2)
    assert log.read(4, 10) == (4, b"")
    assert log.tail(5) == (0, b"on")


def test_without_a_file_there_is_an_error(tmp_path):
    log = LogFile(tmp_path / "none")
    for ask in (
        log.size,
        log.start,
        lambda: log.read(0, 1),
        lambda: log.tail(1),
        lambda: log.cap(1),
    ):
        with pytest.raises(FileNotFoundError):
            ask()
