"""What a job may write is read through no link, and never beyond its folder."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.storage import snapshots
from gpuyard.storage.blobs import BlobStore
from gpuyard.storage.matches import Matches
from gpuyard.storage.untrusted import (
    UntrustedFileError,
    open_beneath,
    open_regular,
    read_beneath,
    remove_tree,
    write_beneath,
    write_whole,
)
from gpuyard.storage.workspaces import files_of

SECRET = b"the secret of somebody else"
SWAP = """
import os, sys
first, second, place = sys.argv[1:]
while True:
    for thing in (first, second):
        os.rename(thing, place)
        for _ in range(100):
            os.stat(place)
        os.rename(place, thing)
"""


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A folder outside of the job's, with a file that is no job's business."""
    folder = tmp_path / "secret"
    folder.mkdir()
    (folder / "step-1.pt").write_bytes(SECRET)
    return folder


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def stored(blobs: BlobStore) -> bytes:
    """All that is in the store."""
    return b"".join(path.read_bytes() for path in blobs.root.glob("??/*"))


def matches(folder: Path, pattern: str, **more: bool | int) -> Matches:
    return Matches(folder, pattern, time.time() - 60, **more)  # type: ignore[arg-type]


def take(found: Matches, blobs: BlobStore, owner: int | None = None) -> list[str]:
    """Store all matches as an agent does; returns their names."""
    names = sorted(found.complete(last=True))
    for name in names:
        blobs.put_beneath(*found.place(name), owner=owner)
    return names


@contextmanager
def swapping(first: Path, second: Path, place: Path) -> Generator[None]:
    """Put two things at `place` in turn, in a process of its own."""
    words = [sys.executable, "-I", "-S", "-c", SWAP, first, second, place]
    process = subprocess.Popen(words)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("make", "pattern"),
    [
        (lambda work, secret: link(work / "step-1.pt", secret / "step-1.pt"), "*.pt"),
        (lambda work, secret: link(work / "step-1.pt", secret / "step-1.pt"), "**"),
        (lambda work, secret: link(work / "step-1", secret), "step-*"),
        (lambda work, secret: link(work / "deep", secret), "*/step-*"),
        (lambda work, secret: link(work / "deep", secret), "**/*.pt"),
        (lambda work, secret: link(work / "out", secret), "out/*.pt"),
        (lambda work, secret: link(work / "out", secret), "out/step-1.pt"),
        (lambda work, secret: None, "../secret/*.pt"),
        (lambda work, secret: None, "*/../../secret/*.pt"),
        (lambda work, secret: None, "/etc/hostname"),
    ],
)
def test_no_pattern_reaches_a_file_outside(
    work: Path,
    secret: Path,
    blobs: BlobStore,
    make: Callable[[Path, Path], None],
    pattern: str,
) -> None:
    make(work, secret)
    assert take(matches(work, pattern), blobs) == []


def link(place: Path, target: Path) -> None:
    place.symlink_to(target)


def test_what_honest_programs_do_still_works(
    work: Path, tmp_path: Path, blobs: BlobStore
) -> None:
    link(tmp_path / "way", work)
    (work / "step-1.pt").write_bytes(b"one")
    link(work / "latest.pt", Path("step-1.pt"))
    (work / ".hidden.pt").write_bytes(b"no match of a glob")
    (work / "step-2.pt.tmp").write_bytes(b"unfinished")
    (work / "run" / "deep").mkdir(parents=True)
    (work / "run" / "deep" / "step-3.pt").write_bytes(b"three")
    found = tmp_path / "way"
    assert take(matches(found, "./*.pt"), blobs) == ["step-1.pt"]
    assert take(matches(found, "**/*.pt"), blobs) == ["run/deep/step-3.pt", "step-1.pt"]
    assert take(matches(found, "run/"), blobs) == ["run"]
    assert take(matches(found, "step-[12].pt/"), blobs) == []
    assert take(matches(found, ".*.pt"), blobs) == [".hidden.pt"]


def test_a_named_folder_may_lie_on_another_disk_where_the_job_is_our_own_user(
    work: Path, secret: Path, blobs: BlobStore
) -> None:
    link(work / "out", secret)
    link(secret / "latest.pt", Path("step-1.pt"))
    named = matches(work, "out/*.pt", linked_folders=True)
    assert take(named, blobs) == ["out/step-1.pt"]
    assert take(matches(work, "o*/*.pt", linked_folders=True), blobs) == []
    assert take(matches(work, "**/*.pt", linked_folders=True), blobs) == []


def test_a_file_of_another_user_is_no_checkpoint_of_the_job(
    work: Path, secret: Path, blobs: BlobStore
) -> None:
    """A hard link needs no right to read, where `fs.protected_hardlinks` is 0."""
    os.link(secret / "step-1.pt", work / "step-1.pt")
    (work / "step-2").mkdir()
    os.link(secret / "step-1.pt", work / "step-2" / "weights.pt")
    (work / "step-2" / "own").write_bytes(b"own")
    somebody = os.getuid() + 1
    assert take(matches(work, "step-*", owner=somebody), blobs, somebody) == []
    with pytest.raises(UntrustedFileError, match="belongs to another user"):
        blobs.put_beneath(work, "step-1.pt", owner=somebody)
    blobs.put_beneath(work, "step-2", owner=somebody)
    assert SECRET not in stored(blobs)
    assert take(matches(work, "*", owner=os.getuid()), blobs) == ["step-1.pt", "step-2"]


def test_a_folder_is_packed_without_what_its_links_lead_to(
    work: Path, secret: Path, blobs: BlobStore, tmp_path: Path
) -> None:
    folder = work / "checkpoint-5"
    (folder / "deep").mkdir(parents=True)
    (folder / "weights.pt").write_bytes(b"weights")
    link(folder / "latest", Path("weights.pt"))
    link(folder / "deep" / "up", Path("../weights.pt"))
    link(folder / "whole-way", folder / "weights.pt")
    link(folder / "out-file", secret / "step-1.pt")
    link(folder / "out-folder", secret)
    link(folder / "deep" / "far", Path("../../../secret/step-1.pt"))
    link(folder / "winding", Path("deep/up/../../../secret"))
    os.mkfifo(folder / "pipe")
    blob = blobs.put_beneath(work, "checkpoint-5")
    back = tmp_path / "back"
    blobs.restore(blob.sha256, back, directory=True)
    links = {
        path.name: str(path.readlink()) for path in back.rglob("*") if is_link(path)
    }
    assert links == {
        "latest": "weights.pt",
        "up": "../weights.pt",
        "whole-way": "weights.pt",
    }
    assert sorted(path.name for path in back.iterdir()) == [
        "deep",
        "latest",
        "weights.pt",
        "whole-way",
    ]
    assert SECRET not in stored(blobs)


def is_link(path: Path) -> bool:
    return path.is_symlink()


def test_a_folder_that_is_swapped_for_a_link_wins_no_race(
    work: Path, secret: Path, blobs: BlobStore
) -> None:
    honest = work / "honest"
    (honest / "deep").mkdir(parents=True)
    (honest / "deep" / "step-1.pt").write_bytes(b"honest")
    (secret / "deep").mkdir()
    (secret / "deep" / "step-1.pt").write_bytes(SECRET)
    link(work / "hostile", secret)
    won = 0
    with swapping(honest, work / "hostile", work / "out"):
        for _ in range(1000):
            matches(work, "out/**/*.pt").complete(last=True)
            for name in ("out", "out/deep/step-1.pt"):
                with suppress(OSError):
                    blobs.put_beneath(work, name)
                    won += 1
    assert won, "the honest folder was never there"
    assert SECRET not in stored(blobs)


def test_a_snapshot_is_of_no_folder_that_a_job_swaps_for_a_link(
    work: Path, secret: Path, blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_RETRY_S", 0.0)
    honest = work / "honest"
    honest.mkdir()
    (honest / "step-1.pt").write_bytes(b"honest")
    link(work / "hostile", secret)
    with swapping(honest, work / "hostile", work / "out"):
        for _ in range(1000):
            with suppress(InvalidInputError, OSError):
                snapshots.take(work, blobs)
    assert SECRET not in stored(blobs)


def test_folders_in_folders_without_end_are_no_checkpoint(
    work: Path, blobs: BlobStore
) -> None:
    inner = os.open(work, os.O_RDONLY)
    for _ in range(200):
        os.mkdir("step-1", dir_fd=inner)
        outer = inner
        inner = os.open("step-1", os.O_RDONLY, dir_fd=outer)
        os.close(outer)
    os.close(inner)
    assert take(matches(work, "**/*"), blobs) == []
    with pytest.raises(UntrustedFileError, match="nested too deeply"):
        blobs.put_beneath(work, "step-1")


def test_a_pipe_or_a_device_is_not_waited_for(work: Path) -> None:
    os.mkfifo(work / "pipe")
    for read in (
        lambda: open_beneath(work, "pipe"),
        lambda: read_beneath(work, "pipe", 10),
        lambda: open_regular(work / "pipe"),
        lambda: open_regular(Path("/dev/null")),
    ):
        with pytest.raises(UntrustedFileError, match="no regular file"):
            read()


def test_a_file_that_grows_while_it_is_stored_ends_where_it_was(
    work: Path, blobs: BlobStore
) -> None:
    file = work / "step-1.pt"
    file.write_bytes(b"x" * 1_000_000)
    over = threading.Event()

    def grow() -> None:
        with file.open("ab") as growing:
            while not over.is_set():
                growing.write(b"x" * 1_000_000)
                if growing.tell() > 200_000_000:
                    growing.truncate(1_000_000)

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        blob = blobs.put_beneath(work, "step-1.pt")
    finally:
        over.set()
        thread.join()
    assert blob.size <= 202_000_000


@pytest.mark.parametrize(
    "name", ["", ".", "/etc/passwd", "../secret/step-1.pt", "a/.."]
)
def test_a_name_that_leads_out_opens_nothing(
    work: Path, secret: Path, name: str
) -> None:
    with pytest.raises(UntrustedFileError, match="not below its folder"):
        open_beneath(work, name)
    with pytest.raises(UntrustedFileError, match="not below its folder"):
        write_beneath(work, name, b"x")


def test_a_link_is_replaced_and_not_written_through(work: Path, secret: Path) -> None:
    target = secret / "step-1.pt"
    link(work / "result.json", target)
    write_whole(work / "result.json", b"new")
    assert (work / "result.json").read_bytes() == b"new"
    link(work / "results", secret)
    with pytest.raises(UntrustedFileError, match="a link"):
        write_beneath(work, "results/step-1.pt", b"new")
    assert target.read_bytes() == SECRET
    write_beneath(work, "new/deep/index.json", b"new")
    assert [path.name for path in (work / "new" / "deep").iterdir()] == ["index.json"]


def nest(folder: Path, depth: int) -> None:
    """Make folders in folders, too deep for a path of any length."""
    current = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=current)
        inner = os.open("d", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = inner
    os.close(os.open("file", os.O_CREAT, dir_fd=current))
    os.close(current)


def test_a_tree_of_any_depth_is_removed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    tree = tmp_path / "tree"
    tree.mkdir()
    nest(tree, 3000)
    (tree / "link").symlink_to(kept)
    (tree / "closed").mkdir(mode=0)
    remove_tree(tree)
    remove_tree(tmp_path / "absent")
    (tmp_path / "link").symlink_to(kept)
    remove_tree(tmp_path / "link")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "link"]
    assert (kept / "file").exists()


def test_the_files_of_folders_of_any_depth_are_listed(tmp_path: Path) -> None:
    (tmp_path / "near").touch()
    nest(tmp_path, 1200)
    try:
        found = [path for path, _ in files_of(tmp_path)]
        assert found[0] == "near"
        assert found[1].endswith("d/file")
    finally:
        remove_tree(tmp_path / "d")


def test_folders_and_links_of_others_are_not_packed(
    tmp_path: Path, blobs: BlobStore
) -> None:
    work = tmp_path / "work"
    (work / "own").mkdir(parents=True)
    (work / "own" / "file").touch()
    (work / "of-root").mkdir()
    (work / "of-root" / "hidden").mkdir()
    (work / "link").symlink_to("own")
    me = os.getuid()
    for path in (work / "own", work / "own" / "file"):
        os.chown(path, 65534, 65534)
    blob = blobs.put_beneath(tmp_path, "work", owner=65534)
    blobs.restore(blob.sha256, tmp_path / "back", directory=True)
    found = sorted(path.name for path in (tmp_path / "back").rglob("*"))
    assert (me, found) == (0, ["file", "own"])


def test_a_link_to_a_folder_of_others_holds_no_checkpoints(tmp_path: Path) -> None:
    work = tmp_path / "work"
    closed = tmp_path / "closed"
    own = tmp_path / "own"
    for folder in (work, closed, own):
        folder.mkdir()
        (folder / "step-1").touch()
        os.chown(folder / "step-1", 65534, 65534)
    os.chown(own, 65534, 65534)
    (work / "out").symlink_to(closed)
    (work / "mine").symlink_to(own)

    def found(pattern: str) -> list[str]:
        return Matches(work, pattern, 0, linked_folders=True, owner=65534).names()

    assert found("out/step-*") == []
    assert found("mine/step-*") == ["mine/step-1"]
    assert found("step-*") == ["step-1"]
