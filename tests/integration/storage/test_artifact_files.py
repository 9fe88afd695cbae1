"""Which files of an ended job become artifacts, and how they get into the store."""

import errno
import hashlib
import os
import threading
import time
from pathlib import Path

import pytest

from gpuyard.config.settings import NodeSettings
from gpuyard.domain.artifacts import ArtifactOrder
from gpuyard.storage.artifact_files import ArtifactFinder
from gpuyard.storage.artifact_saving import ArtifactSaver
from gpuyard.storage.blobs import Blob, BlobStore, BucketError

LARGE = 10**9


def write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


def found(folder: Path, *patterns: str, since: float = 0.0) -> list[str]:
    finder = ArtifactFinder(folder, patterns, since)
    return [file.path for file in finder.find(1000, LARGE).files]


def test_a_folder_stands_for_the_files_in_it(tmp_path: Path):
    write(tmp_path, "out/a.pt", "out/deep/b.pt", "out/deep/c.txt", "other.pt")
    (tmp_path / "out/empty").touch()
    assert found(tmp_path, "out/*.pt") == ["out/a.pt"]
    assert found(tmp_path, "out") == [
        "out/a.pt",
        "out/deep/b.pt",
        "out/deep/c.txt",
        "out/empty",
    ]
    assert found(tmp_path, "**/*.pt", "out/a*") == [
        "other.pt",
        "out/a.pt",
        "out/deep/b.pt",
    ]


def test_no_link_is_followed_and_only_files_are_taken(tmp_path: Path):
    job = tmp_path / "job"
    other = tmp_path / "other"
    write(other, "secret")
    write(job, "out/own")
    (job / "out/link").symlink_to(other / "secret")
    (job / "out/folder").symlink_to(other)
    (job / "linked").symlink_to(other)
    os.mkfifo(job / "out/pipe")
    assert found(job, "out", "out/folder/secret", "*") == ["out/own"]
    assert found(job, "../other/*", str(other), "linked/secret") == []


def test_what_was_there_before_is_not_the_jobs_and_its_time_does_not_matter(
    tmp_path: Path,
):
    write(tmp_path, "old.pt", "again.pt")
    began = time.time() + 0.05
    while time.time() < began + 0.05:
        time.sleep(0.01)
    write(tmp_path, "new.pt", "again.pt")
    os.utime(tmp_path / "new.pt", (0, 0))  # as tar does
    assert found(tmp_path, "*.pt", since=began) == ["again.pt", "new.pt"]


def test_too_many_and_too_large_ones_are_named(tmp_path: Path):
    write(tmp_path, *(f"{number}.pt" for number in range(5)))
    few = ArtifactFinder(tmp_path, ["*.pt"], 0.0).find(3, LARGE)
    assert [file.path for file in few.files] == ["0.pt", "1.pt", "2.pt"]
    assert few.problems == [
        "3.pt, 4.pt left out: an attempt keeps 3 files of 1 GB together ([node]"
        " artifact_files, artifacts_gb)"
    ]
    small = ArtifactFinder(tmp_path, ["*.pt", "*.bin"], 0.0).find(9, 9)
    assert [file.path for file in small.files] == ["0.pt", "1.pt"]
    assert small.problems[0] == "*.bin matches no file that it wrote"
    assert small.problems[1].startswith("2.pt, 3.pt, 4.pt left out")


class Outage(BlobStore):
    """A store that fails so often, with this error."""

    def __init__(self, root: Path, times: int, error: OSError) -> None:
        super().__init__(root)
        self.times = times
        self.error = error

    def put_beneath(self, *arguments: object, **named: object) -> Blob:
        if self.times:
            self.times -= 1
            raise self.error
        return super().put_beneath(*arguments, **named)  # type: ignore[arg-type]


class Pauses(threading.Event):
    """Ends each wait at once; `stop_in`: the wait that ends because it is set."""

    def __init__(self, stop_in: int = 0) -> None:
        super().__init__()
        self.seen: list[float | None] = []
        self._stop_in = stop_in

    def wait(self, timeout: float | None = None) -> bool:
        self.seen.append(timeout)
        if len(self.seen) == self._stop_in:
            self.set()
        return self.is_set()


def saver(
    store: BlobStore, *patterns: str, pauses: Pauses | None = None
) -> ArtifactSaver:
    return ArtifactSaver(
        "attempt_1",
        ArtifactOrder([*patterns]),
        NodeSettings(),
        store,
        owner=None,
        linked_folders=True,
        shown=lambda text: text.replace("hunter2", "***"),
        stopped=pauses,
    )


def test_they_are_stored_under_their_hash_and_a_secret_in_a_name_is_hidden(
    tmp_path: Path,
):
    write(tmp_path / "job", "a.pt", "hunter2.pt")
    store = BlobStore(tmp_path / "blobs")
    (message,) = saver(store, "*").save(tmp_path / "job", 0.0)
    assert [file.path for file in message.files] == ["a.pt", "***.pt"]
    assert message.files[0].sha256 == hashlib.sha256(b"a.pt").hexdigest()
    assert store.has(message.files[1].sha256)


def test_a_store_that_is_away_is_waited_for_and_a_full_disk_is_not(tmp_path: Path):
    write(tmp_path / "job", "a.pt", "b.pt")
    pauses = Pauses()
    away = Outage(tmp_path / "blobs", 3, BucketError("it does not answer"))
    (message,) = saver(away, "*.pt", pauses=pauses).save(tmp_path / "job", 0.0)
    assert len(message.files) == 2
    assert pauses.seen == [1.0, 2.0, 4.0]

    full = Outage(tmp_path / "full", 9, OSError(errno.ENOSPC, "No space left"))
    (message,) = saver(full, "*.pt", pauses=pauses).save(tmp_path / "job", 0.0)
    assert not message.files
    assert message.problems == [
        "a.pt could not be saved: [Errno 28] No space left",
        "nothing behind it was saved",
    ]
    assert len(pauses.seen) == 3


def test_the_end_of_the_job_by_its_owner_stops_the_saving(tmp_path: Path):
    write(tmp_path / "job", "a.pt", "b.pt")
    pauses = Pauses(stop_in=2)
    away = Outage(tmp_path / "blobs", 99, BucketError("it does not answer"))
    (message,) = saver(away, "*.pt", pauses=pauses).save(tmp_path / "job", 0.0)
    assert message.problems[0] == "a.pt could not be saved: it does not answer"
    assert pauses.seen == [1.0, 2.0]

    pauses.set()
    store = BlobStore(tmp_path / "there")
    (message,) = saver(store, "*.pt", pauses=pauses).save(tmp_path / "job", 0.0)
    assert message.problems == ["the job was ended before the rest was saved"]


@pytest.mark.parametrize("name", ["line\nbreak", "esc\x1b[31m"])
def test_a_name_that_cannot_be_shown_is_left_out(tmp_path: Path, name: str):
    write(tmp_path / "job", name, "fine")
    store = BlobStore(tmp_path / "blobs")
    first, told = saver(store, "*").save(tmp_path / "job", 0.0)
    assert [file.path for file in first.files] == ["fine"]
    assert "its name cannot be printed" in told.problems[0]
