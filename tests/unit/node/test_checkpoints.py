"""When a file or folder counts as a complete checkpoint, look by look."""

import os
import time
from pathlib import Path

import pytest

from gpuyard.domain import wire
from gpuyard.node.checkpoints import CheckpointWatcher
from gpuyard.storage.blobs import BlobStore


class Scans:
    """A watcher of the pattern `*` in `folder`, with the paths of what each scan
    took.
    """

    def __init__(self, folder: Path, pattern="*", began_at=None):
        start = wire.StartAttempt(
            "a1", 1, 1, "job_1", ["true"], {}, checkpoint_path=pattern
        )
        began_at = time.time() - 60 if began_at is None else began_at
        self.blobs = BlobStore(folder.parent / "blobs")
        self.watcher = CheckpointWatcher(
            start, folder, began_at, self.blobs, lambda _at: 77
        )

    def __call__(self, *, last=False, pids=lambda: ()):
        self.saved = self.watcher.scan(pids, last=last)
        return [saved.path for saved in self.saved]


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def scan(folder):
    return Scans(folder)


def write(path: Path, data: bytes, age_s: float = 10.0):
    """Write a file that was last changed `age_s` seconds ago."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    then = time.time() - age_s
    os.utime(path, (then, then))
    os.utime(path.parent, (then, then))


def test_a_file_is_taken_when_it_has_looked_the_same_twice(folder, scan):
    write(folder / "a", b"1")
    assert scan() == []
    assert scan() == ["a"]
    assert scan() == []


def test_a_file_that_changes_between_looks_is_not_taken_until_it_stays(folder, scan):
    for size in range(1, 5):
        write(folder / "a", b"x" * size)
        assert scan() == []
    assert scan() == ["a"]
    assert scan.saved[0].size == 4


def test_the_same_size_with_another_time_is_a_change(folder, scan):
    write(folder / "a", b"1", age_s=20)
    scan()
    assert scan() == ["a"]
    write(folder / "a", b"2", age_s=10)
    assert scan() == []
    assert scan() == ["a"]


def test_a_file_that_changes_while_it_is_looked_at_or_copied_is_left_for_later(
    folder, scan, monkeypatch
):
    write(folder / "a", b"1")
    scan()
    put = BlobStore.put

    def slow(self, source):
        blob = put(self, source)
        write(folder / "a", b"22", age_s=5)
        return blob

    monkeypatch.setattr(BlobStore, "put", slow)
    assert scan() == []
    monkeypatch.undo()

    def opens_it():
        write(folder / "a", b"333", age_s=4)
        return ()

    assert scan() == []
    assert scan(pids=opens_it) == []
    assert scan() == []
    assert scan() == ["a"]
    assert scan.saved[0].size == 3


def test_a_folder_must_have_been_quiet_for_a_while_too(folder, scan):
    write(folder / "c" / "x", b"1", age_s=0)
    assert [scan() for _ in range(5)] == [[]] * 5
    write(folder / "c" / "x", b"1", age_s=60)
    assert scan() == []
    assert scan() == ["c"]
    assert scan.saved[0].directory


def test_a_file_deep_in_a_folder_counts(folder, scan):
    write(folder / "c" / "x", b"1")
    scan()
    assert scan() == ["c"]
    (folder / "c" / "x").write_bytes(b"2")
    assert scan() == []
    write(folder / "c" / "x", b"2", age_s=5)
    scan()
    assert scan() == ["c"]


def test_the_last_scan_takes_what_is_there(folder, scan):
    write(folder / "a", b"1", age_s=0)
    write(folder / "c" / "x", b"1", age_s=0)
    assert sorted(scan(last=True)) == ["a", "c"]
    assert scan(last=True) == []


def test_a_process_that_has_it_open_for_writing_keeps_it_back(folder, scan):
    write(folder / "a", b"1")
    write(folder / "c" / "x", b"1")
    scan()
    with (folder / "a").open("ab"), (folder / "c" / "x").open("r+b"):
        assert scan(pids=lambda: [os.getpid()]) == []
        assert scan(last=True, pids=lambda: [os.getpid()]) == []
    with (folder / "a").open("rb"):
        assert sorted(scan(pids=lambda: [os.getpid(), 2**22])) == ["a", "c"]


def test_processes_are_only_looked_for_when_something_is_ready(folder, scan):
    def unwanted():
        raise AssertionError("nothing is ready")

    scan(pids=unwanted)
    write(folder / "a", b"1")
    scan(pids=unwanted)
    scan()
    scan(pids=unwanted)


def test_they_are_told_oldest_first(folder, scan):
    for age_s, name in ((30, "z"), (20, "a"), (10, "m")):
        write(folder / name, b"1", age_s)
    scan()
    assert scan() == ["z", "a", "m"]


def test_what_is_older_than_the_attempt_or_was_there_is_not_its_work(folder):
    write(folder / "old", b"1", age_s=100)
    write(folder / "young", b"1", age_s=0)
    scan = Scans(folder)
    scan.watcher.ignore_existing()
    assert scan(last=True) == []
    write(folder / "young", b"2", age_s=0)
    assert scan(last=True) == ["young"]


def test_after_a_restart_what_was_reported_is_known(folder, scan):
    write(folder / "a", b"1")
    write(folder / "b", b"1")
    scan()
    scan()
    again = Scans(folder)
    again.watcher.remember(
        [*scan.saved, wire.CheckpointSaved("a1", "gone", "ab", 1, time.time())]
    )
    write(folder / "b", b"2", age_s=-1)
    assert again(last=True) == ["b"]


def test_the_newest_is_known_by_when_it_was_written(folder, scan):
    assert scan.watcher.newest_ns == 0
    write(folder / "a", b"1", age_s=30)
    write(folder / "b", b"1", age_s=20)
    scan(last=True)
    assert scan.watcher.newest_ns == (folder / "b").stat().st_mtime_ns


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500", 500),
        ("ckpt_12.pt", 12),
        ("epoch=3-step=1000.ckpt", 1000),
        ("model-iter00020.bin", 20),
        ("Epoch7.pt", 7),
        ("model.pt", 77),
        ("resnet50.pt", 77),
        ("2026-01-01.pt", 77),
    ],
)
def test_the_step_is_read_from_the_name_or_is_the_outputs(folder, scan, name, step):
    write(folder / name, b"1")
    scan(last=True)
    assert scan.saved[0].step == step


def test_one_that_cannot_be_stored_is_tried_again_and_hides_no_other(
    folder, scan, monkeypatch, capsys
):
    write(folder / "a", b"1", age_s=20)
    write(folder / "b", b"1", age_s=10)
    put = BlobStore.put

    def full(self, source):
        if Path(source.name).name == "a":
            raise OSError(28, "No space left on device")
        return put(self, source)

    monkeypatch.setattr(BlobStore, "put", full)
    scan()
    assert scan() == ["b"]
    assert scan() == []
    assert capsys.readouterr().out.count("could not be kept") == 1
    monkeypatch.undo()
    assert scan() == ["a"]
