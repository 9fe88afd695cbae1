"""Snapshots of working directories: the same content is the same blob, stored once, and
back as it was.
"""

import hashlib
import io
import os
import socket
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.domain.errors import InvalidInputError
from gpuyard.storage import snapshots
from gpuyard.storage.blobs import Blob, Blobs, BlobStore, open_blobs
from gpuyard.storage.snapshots import Snapshot, take, unpack
from tests.support.examples import examples
from tests.support.open_folder import open_folder
from tests.support.programs import run_program
from tests.support.s3 import Bucket

YEAR_2020 = 1_577_836_800


class Counting(BlobStore):
    """Counts what is stored; `during` is called when something is about to be."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.stored = 0
        self.during = lambda: None

    def put(self, source: io.BufferedIOBase) -> Blob:
        self.stored += 1
        self.during()
        return super().put(source)


@pytest.fixture
def blobs(tmp_path: Path) -> Counting:
    return Counting(tmp_path / "blobs")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test remembers nothing of another, and none waits before it tries again."""
    monkeypatch.setattr(snapshots, "_cache", {})
    monkeypatch.setattr(snapshots, "_RETRY_S", 0.0)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "src" / "empty").mkdir(parents=True)
    (folder / "train.py").write_text("print('hello')\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "src" / "größe, und mehr.json").write_text("{}")
    (folder / "latest").symlink_to("train.py")
    (folder / "big.bin").write_bytes(os.urandom(3_000_000))
    return folder


def tree(folder: Path) -> dict[str, object]:
    """Every path with its content, its link, or None for a directory; and whether it
    may be executed.
    """

    def content(path: Path) -> object:
        if path.is_symlink():
            return str(path.readlink())
        return (path.read_bytes(), os.access(path, os.X_OK)) if path.is_file() else None

    return {str(path.relative_to(folder)): content(path) for path in folder.rglob("*")}


def age(folder: Path) -> None:
    """Set the times of all content in `folder` back by years."""
    for path in folder.rglob("*"):
        os.utime(path, (YEAR_2020, YEAR_2020), follow_symlinks=False)


def later(monkeypatch: pytest.MonkeyPatch, by_s: float) -> None:
    """Let snapshots be taken `by_s` seconds from now: the time of a change cannot be
    set back.
    """
    now = snapshots.time.time_ns
    monkeypatch.setattr(snapshots.time, "time_ns", lambda: now() + int(by_s * 1e9))


def test_what_is_taken_comes_back(blobs: Blobs, project: Path, tmp_path: Path):
    snapshot = take(project, blobs)
    assert snapshot == Snapshot(snapshot.sha256, snapshot.size, 5, {})
    with blobs.open(snapshot.sha256) as file:
        archive = file.read()
    assert (hashlib.sha256(archive).hexdigest(), len(archive)) == (
        snapshot.sha256,
        snapshot.size,
    )
    unpack(blobs, snapshot.sha256, tmp_path / "there" / "work")
    assert tree(tmp_path / "there" / "work") == tree(project)
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["work"]


def test_in_a_bucket(bucket: Bucket, project: Path, tmp_path: Path):
    blobs = open_blobs(bucket.url, {})
    unpack(blobs, take(project, blobs).sha256, tmp_path / "work")
    assert tree(tmp_path / "work") == tree(project)


def test_any_tar_reads_it(blobs: Blobs, project: Path, tmp_path: Path):
    (project / ("long" * 60)).write_text("a name of 240 characters")
    with blobs.open(take(project, blobs).sha256) as file:
        subprocess.run(
            ["tar", "-x", "-C", str(tmp_path), "--one-top-level=out"],
            stdin=file,
            check=True,
        )
    assert tree(tmp_path / "out") == tree(project)


def test_the_hash_is_of_the_content_alone(blobs: Blobs, project: Path, tmp_path: Path):
    first = take(project, blobs)
    copy = tmp_path / "copy"
    subprocess.run(
        ["cp", "-r", "--no-dereference", "--preserve=mode", str(project), str(copy)],
        check=True,
    )
    for path in copy.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    (copy / "train.py").chmod(0o600)
    assert take(copy, blobs) == first
    (copy / "train.py").chmod(0o700)
    assert take(copy, blobs) != first


names = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]),
    min_size=1,
    max_size=8,
).filter(
    lambda name: (
        name
        not in {
            ".",
            "..",
            ".git",
            "__pycache__",
            "pyvenv.cfg",
            ".gitignore",
            ".gpuyardignore",
        }
    )
)
trees = st.recursive(
    st.binary(max_size=2000) | st.just("link"),
    lambda below: st.dictionaries(names, below, max_size=5),
    max_leaves=20,
).filter(lambda item: isinstance(item, dict))


def lay(folder: Path, content: object, at: float) -> None:
    if isinstance(content, dict):
        folder.mkdir()
        for name, below in content.items():
            lay(folder / name, below, at)
    elif isinstance(content, bytes):
        folder.write_bytes(content)
        folder.chmod(0o755 if len(content) % 2 else 0o644)
    else:
        folder.symlink_to("anything")
    os.utime(folder, (at, at), follow_symlinks=False)


@settings(deadline=None, max_examples=examples(100))
@given(trees, trees)
def test_any_tree(content: dict[str, object], other: dict[str, object]):
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        blobs = BlobStore(root / "blobs")
        for folder, item, at in (
            ("a", content, 1e9),
            ("b", content, 1.5e9),
            ("c", other, 1e9),
        ):
            lay(root / folder, item, at)
        a, b, c = (take(root / folder, blobs) for folder in "abc")
        assert a == b
        assert (a == c) == (tree(root / "a") == tree(root / "c"))
        unpack(blobs, a.sha256, root / "back")
        assert tree(root / "back") == tree(root / "a")


def test_a_name_that_is_no_text(blobs: Blobs, tmp_path: Path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / os.fsdecode(b"caf\xe9")).write_text("latin")
    unpack(blobs, take(tmp_path / "project", blobs).sha256, tmp_path / "back")
    assert [os.fsencode(path.name) for path in (tmp_path / "back").iterdir()] == [
        b"caf\xe9"
    ]


def test_files_that_share_their_bytes_are_files(
    blobs: Blobs, project: Path, tmp_path: Path
):
    (project / "hard").hardlink_to(project / "train.py")
    linked = take(project, blobs)
    (project / "hard").unlink()
    (project / "hard").write_text((project / "train.py").read_text())
    assert take(project, blobs) == linked


def test_links_that_point_inside_are_kept(blobs: Blobs, project: Path, tmp_path: Path):
    (project / "src" / "up").symlink_to("../train.py")
    (project / "src" / "round").symlink_to("../../project/train.py")
    (project / "absolute").symlink_to(project / "src")
    (project / "broken").symlink_to("not-there")
    (project / "itself").symlink_to("itself")
    (project / "all").symlink_to(".")
    snapshot = take(project, blobs)
    assert snapshot.left_out == {}
    unpack(blobs, snapshot.sha256, tmp_path / "back")
    links = {
        str(path.relative_to(tmp_path / "back")): str(path.readlink())
        for path in (tmp_path / "back").rglob("*")
        if path.is_symlink()
    }
    assert links == {
        "latest": "train.py",
        "src/up": "../train.py",
        "src/round": "../train.py",
        "absolute": "src",
        "broken": "not-there",
        "itself": "itself",
        "all": ".",
    }


def test_what_cannot_be_taken_along_is_named(
    blobs: Blobs, project: Path, tmp_path: Path
):
    secret = tmp_path / "secret"
    secret.write_text("not yours")
    (project / "out").symlink_to(secret)
    (project / "src" / "up").symlink_to("../../secret")
    (project / "through").symlink_to("src/up")
    os.mkfifo(project / "pipe")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(project / "socket"))
        snapshot = take(project, blobs)
    outside = f"it is a link to '{secret}', outside of the directory"
    assert snapshot.left_out == {
        "out": outside,
        "src/up": outside,
        "through": outside,
        "pipe": "it is a named pipe",
        "socket": "it is a socket",
    }
    assert snapshot.files == 5
    unpack(blobs, snapshot.sha256, tmp_path / "back")
    assert not os.path.lexists(tmp_path / "back" / "out")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_a_device_is_named(blobs: Blobs, project: Path):
    os.mknod(project / "null", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    assert take(project, blobs).left_out == {"null": "it is a device"}


def test_what_has_not_changed_is_not_read_again(
    blobs: Counting, project: Path, monkeypatch: pytest.MonkeyPatch
):
    later(monkeypatch, 10)
    first = take(project, blobs)
    assert take(project, blobs) == first
    assert blobs.stored == 1
    (project / "train.py").write_text("print('hallo')\n")
    assert take(project, blobs) != first
    assert blobs.stored == 2


def test_what_has_just_changed_is_read_again(blobs: Counting, project: Path):
    age(project)  # the times of content say nothing: they can be set
    assert take(project, blobs) == take(project, blobs)
    assert blobs.stored == 2


def test_a_change_that_hides_its_time_is_seen(
    blobs: Counting, project: Path, monkeypatch: pytest.MonkeyPatch
):
    age(project)
    later(monkeypatch, 10)
    first = take(project, blobs)
    (project / "train.py").write_text("print('hullo')\n")
    os.utime(project / "train.py", (YEAR_2020, YEAR_2020))
    assert take(project, blobs) != first


def test_what_is_gone_from_the_store_is_stored_again(
    blobs: Counting, project: Path, monkeypatch: pytest.MonkeyPatch
):
    later(monkeypatch, 10)
    first = take(project, blobs)
    blobs.delete(first.sha256)
    assert take(project, blobs) == first
    assert blobs.has(first.sha256)


@pytest.mark.parametrize("name", ["big.bin", "train.py"])
def test_a_file_that_changes_meanwhile_is_read_anew(
    blobs: Counting, project: Path, name: str
):
    def grow() -> None:
        if blobs.stored == 1:
            with (project / name).open("ab") as file:
                file.write(b"more")

    blobs.during = grow
    snapshot = take(project, blobs)
    assert blobs.stored == 2
    with blobs.open(snapshot.sha256) as file, tarfile.open(fileobj=file) as archive:
        assert archive.extractfile(name).read() == (project / name).read_bytes()


@pytest.mark.parametrize(
    "change", ["shrinks", "grows", "goes and comes", "becomes a link", "becomes a pipe"]
)
def test_a_file_that_keeps_changing_is_named(
    blobs: Counting, project: Path, change: str
):
    path = project / "train.py"

    def act() -> None:
        content = b"x" * (
            100 - blobs.stored if change == "shrinks" else 100 + blobs.stored
        )
        path.unlink(missing_ok=True)
        if change == "becomes a link":
            path.symlink_to("/etc/passwd")
        elif change == "becomes a pipe":
            os.mkfifo(path)
        else:
            path.write_bytes(content)

    blobs.during = act
    if change.startswith("becomes"):
        snapshot = take(project, blobs)
        assert set(snapshot.left_out) == (
            {"train.py", "latest"} if change == "becomes a link" else {"train.py"}
        )
        return
    with pytest.raises(
        InvalidInputError, match=r"workdir: 'train.py' keeps changing .*\.gpuyardignore"
    ):
        take(project, blobs)
    assert blobs.stored == 3
    assert [path for path in blobs.root.rglob("*") if path.is_file()] == []


def test_while_others_write_every_snapshot_is_whole(
    blobs: Blobs, project: Path, tmp_path: Path
):
    done = threading.Event()

    def rewrite() -> None:
        count = 0
        while not done.is_set():
            count += 1
            (project / "train.py").write_text(str(count) * 1000)
            done.wait(0.02)

    (project / "train.py").write_text("0" * 1000)
    thread = threading.Thread(target=rewrite)
    thread.start()
    try:
        for index in range(20):
            try:
                snapshot = take(project, blobs)
            except InvalidInputError:
                continue
            unpack(blobs, snapshot.sha256, tmp_path / str(index))
            text = (tmp_path / str(index) / "train.py").read_text()
            assert text == text[: len(text) // 1000] * 1000
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_what_cannot_be_read_is_named(kind: str):
    """As root, in a process of someone else, whom permissions hold."""
    with tempfile.TemporaryDirectory() as name:
        project = Path(name).resolve()
        project.chmod(0o755)
        (project / "src").mkdir()
        (project / "train.py").touch()
        path = project / ("src" if kind == "directory" else "train.py")
        path.chmod(0)
        said = taken_by_nobody(project)
    shown = str(path) if kind == "directory" else "train.py"
    assert (
        said
        == f"workdir: '{shown}' cannot be read: Permission denied (make it readable, or"
        " name it in .gpuyardignore)\n"
    )


def taken_by_nobody(project: Path) -> str:
    program = (
        "import os, sys, tempfile; from pathlib import Path\nfrom gpuyard.storage.blobs"
        " import BlobStore; from gpuyard.storage.snapshots import take\nfrom"
        " gpuyard.domain.errors import InvalidInputError\nos.geteuid() or"
        " os.setuid(65534)\nwith tempfile.TemporaryDirectory() as blobs:\n    try:"
        " take(Path(sys.argv[1]), BlobStore(Path(blobs)))\n    except InvalidInputError"
        " as error: print(error)\n"
    )
    done = run_program([sys.executable, "-c", program, str(project)])
    return done.stdout


def test_too_large_is_refused_with_the_largest(blobs: Counting, project: Path):
    (project / "data").mkdir()
    for index in range(40):
        (project / "data" / f"{index}.jpg").write_bytes(bytes(100_000))
    (project / "runs" / "1").mkdir(parents=True)
    (project / "runs" / "1" / "model.pt").write_bytes(bytes(2_000_000))
    with pytest.raises(InvalidInputError) as caught:
        take(project, blobs, max_bytes=4 << 20)
    (fault,) = caught.value.faults
    assert fault.field == "workdir"
    assert (
        fault.fault == f"'{project}' holds 9 MB, and a snapshot at most 4 MB;"
        " the largest are 'data/' (4 MB), 'big.bin' (3 MB), 'runs/1/model.pt' (2 MB)"
    )
    assert ".gpuyardignore" in fault.remedy
    assert blobs.stored == 0
    (project / ".gpuyardignore").write_text("data/\nruns/\n")
    assert take(project, blobs, max_bytes=4 << 20).files == 6


def test_the_limit_itself_is_allowed(blobs: Counting, tmp_path: Path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a").write_bytes(bytes(1000))
    take(tmp_path / "project", blobs, max_bytes=1000)
    with pytest.raises(InvalidInputError):
        take(tmp_path / "project", blobs, max_bytes=999)


def test_the_home_directory_and_all_above_are_refused(
    blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    home = tmp_path / "home" / "me"
    (home / "project").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    (tmp_path / "alias").symlink_to(home)
    for workdir in (
        Path("/"),
        home,
        home.parent,
        tmp_path / "alias",
        home / "project" / "..",
    ):
        with pytest.raises(
            InvalidInputError, match=r"workdir: .* holds the home directory"
        ):
            take(workdir, blobs)
    take(home / "project", blobs)


def test_what_is_no_directory_is_refused(blobs: Blobs, project: Path):
    for workdir in (project / "none", project / "train.py"):
        with pytest.raises(InvalidInputError, match=r"workdir: .* is no directory"):
            take(workdir, blobs)


def test_unpacking_again_leaves_what_a_job_has_done(
    blobs: Blobs, project: Path, tmp_path: Path
):
    snapshot = take(project, blobs)
    work = tmp_path / "work"
    work.mkdir()
    unpack(blobs, snapshot.sha256, work)
    (work / "result").write_text("42")
    unpack(blobs, snapshot.sha256, work)
    assert (work / "result").read_text() == "42"


def test_many_at_once_unpack_it_once(blobs: Blobs, project: Path, tmp_path: Path):
    snapshot = take(project, blobs)
    threads = [
        threading.Thread(
            target=unpack, args=(blobs, snapshot.sha256, tmp_path / "work")
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tree(tmp_path / "work") == tree(project)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "blobs",
        "project",
        "work",
    ]


def test_a_hostile_snapshot_writes_nothing_outside(blobs: Blobs, tmp_path: Path):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("inside"), io.BytesIO())
        tar.addfile(tarfile.TarInfo("../escaped"), io.BytesIO())
    archive.seek(0)
    with pytest.raises(OSError, match="cannot be unpacked"):
        unpack(blobs, blobs.put(archive).sha256, tmp_path / "deep" / "work")
    assert list((tmp_path / "deep").iterdir()) == []


def test_a_missing_snapshot_leaves_nothing(blobs: Blobs, tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        unpack(blobs, "0" * 64, tmp_path / "work")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_directory(blobs: Blobs, tmp_path: Path):
    (tmp_path / "project").mkdir()
    snapshot = take(tmp_path / "project", blobs)
    assert snapshot.files == 0
    for _ in range(2):
        unpack(blobs, snapshot.sha256, tmp_path / "work")
        assert list((tmp_path / "work").iterdir()) == []


def test_a_user_gets_only_what_everybody_on_the_host_may_read(
    blobs: Blobs, tmp_path: Path
) -> None:
    with open_folder() as folder:
        assert take(folder, blobs).files == 3, "the owner gets all"
        public = take(folder, blobs, is_public=True)
        unpack(blobs, public.sha256, tmp_path / "back")
        assert list(tree(tmp_path / "back")) == ["train.py"]
        fault = "not everybody on this host may read it"
        assert public.left_out == {".env.py": fault, "keys": fault}
        for closed in ("keys", "missing"):
            with pytest.raises(
                InvalidInputError, match=r"everybody.*may read"
            ) as caught:
                take(folder / closed, blobs, is_public=True)
            assert caught.value.faults[0].field == "workdir"
        (folder / "keys" / "open").mkdir(mode=0o755)
        with pytest.raises(InvalidInputError, match=r"everybody.*may read"):
            take(folder / "keys" / "open", blobs, is_public=True)
