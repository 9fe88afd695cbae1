"""Both blob stores: whole or not at all, under the right hash, and back as it was."""

import errno
import fcntl
import hashlib
import io
import os
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.storage.blobs import Blob, Blobs, BlobStore, open_blobs
from tests.support.s3 import Bucket
from tests.support.tmpfs import fill, small_disk

BIG = os.urandom(20_000_000)  # more than one chunk, and more than one part of an upload


class Place:
    """A store and a look behind it."""

    def __init__(self, blobs: Blobs, bucket: Bucket | None = None) -> None:
        self.blobs = blobs
        self._bucket = bucket

    def names(self) -> list[str]:
        """The names of everything there, half-written files too."""
        if self._bucket:
            return sorted(
                name.removeprefix("deep/er/") for name in self._bucket.objects()
            )
        assert isinstance(self.blobs, BlobStore)
        root = self.blobs.root
        return sorted(
            str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()
        )

    def write(self, sha256: str, content: bytes) -> None:
        """Put wrong content under a name."""
        name = f"{sha256[:2]}/{sha256[2:]}"
        if self._bucket:
            self._bucket.s3.client.put_object(
                Bucket=self._bucket.name, Key=f"deep/er/{name}", Body=content
            )
        else:
            assert isinstance(self.blobs, BlobStore)
            self.blobs.path(sha256).write_bytes(content)


@pytest.fixture(params=["directory", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "directory":
        return Place(BlobStore(tmp_path / "blobs"))
    bucket = request.getfixturevalue("bucket")
    return Place(open_blobs(bucket.url, {}), bucket)


@pytest.fixture
def store(place: Place) -> Blobs:
    return place.blobs


@pytest.fixture
def local(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def files(store: BlobStore) -> list[Path]:
    return sorted(path for path in store.root.rglob("*") if path.is_file())


def name_of(digest: str) -> str:
    return f"{digest[:2]}/{digest[2:]}"


class Source(io.RawIOBase):
    """Bytes in two halves; `between` is called before the second."""

    def __init__(self, content: bytes, between: Callable[[], None]) -> None:
        super().__init__()
        self._parts = [content[: len(content) // 2], content[len(content) // 2 :]]
        self._between = between

    def read(self, size: int = -1) -> bytes:
        if len(self._parts) == 1:
            self._between()
        return self._parts.pop(0) if self._parts else b""


@pytest.mark.parametrize(
    "content", [b"", b"weights", BIG], ids=["empty", "small", "big"]
)
def test_a_blob_is_stored_under_its_hash(place: Place, content: bytes):
    store = place.blobs
    digest = hashlib.sha256(content).hexdigest()
    assert not store.has(digest)
    assert store.put(io.BytesIO(content)) == Blob(digest, len(content))
    assert store.has(digest)
    with store.open(digest) as file:
        assert file.read() == content
    assert place.names() == [name_of(digest)]


def test_a_blob_is_there_only_when_it_is_whole(place: Place):
    digest = hashlib.sha256(BIG).hexdigest()
    seen = []
    place.blobs.put(
        Source(
            BIG,
            lambda: seen.append(
                (place.blobs.has(digest), name_of(digest) in place.names())
            ),
        )
    )
    assert seen == [(False, False)]
    assert place.blobs.has(digest)


def test_a_source_that_breaks_off_leaves_nothing(place: Place):
    def break_off() -> None:
        raise OSError("the disk it is on was pulled out")

    with pytest.raises(OSError, match="pulled out"):
        place.blobs.put(Source(BIG, break_off))
    assert place.names() == []


def test_the_same_bytes_are_stored_once(place: Place):
    with ThreadPoolExecutor(8) as pool:
        blobs = set(pool.map(lambda _: place.blobs.put(io.BytesIO(BIG)), range(8)))
    assert blobs == {Blob(hashlib.sha256(BIG).hexdigest(), len(BIG))}
    assert place.names() == [name_of(blob.sha256) for blob in blobs]


def test_a_full_disk_is_an_oserror_and_leaves_nothing(tmp_path: Path):
    with small_disk(tmp_path / "disk") as disk:
        store = BlobStore(disk / "blobs")
        kept = store.put(io.BytesIO(b"kept"))
        fill(disk / "ballast")
        with pytest.raises(OSError) as caught:
            store.put(io.BytesIO(BIG))
        assert caught.value.errno == errno.ENOSPC
        assert files(store) == [store.path(kept.sha256)]
        (disk / "ballast").unlink()
        assert store.has(store.put(io.BytesIO(b"there is room again")).sha256)


def test_what_is_restored_is_a_copy(store: Blobs, tmp_path: Path):
    blob = store.put(io.BytesIO(b"weights"))
    target = tmp_path / "deep" / "down" / "model.pt"
    store.restore(blob.sha256, target, directory=False)
    assert target.read_bytes() == b"weights"
    assert [path.name for path in target.parent.iterdir()] == ["model.pt"]
    target.write_bytes(b"changed")
    with store.open(blob.sha256) as file:
        assert file.read() == b"weights"


def test_what_is_not_there(store: Blobs, tmp_path: Path):
    missing = "0" * 64
    assert not store.has(missing)
    with pytest.raises(FileNotFoundError, match=missing[2:]):
        store.open(missing)
    with pytest.raises(FileNotFoundError, match=missing[2:]):
        store.restore(missing, tmp_path / "x", directory=False)
    store.delete(missing)


@pytest.mark.parametrize("directory", [False, True], ids=["file", "directory"])
@pytest.mark.parametrize(
    "left", [0, 1_000, len(BIG) - 1], ids=["all", "much", "a byte"]
)
def test_a_blob_that_lost_its_end_is_an_oserror_and_heals(
    place: Place, checkpoint: Path, tmp_path: Path, left: int, directory: bool
):
    source = checkpoint if directory else checkpoint / "model.safetensors"
    blob = place.blobs.put_beneath(source.parent, source.name)
    with place.blobs.open(blob.sha256) as file:
        place.write(blob.sha256, file.read()[:left])
    target = tmp_path / "back"
    with pytest.raises(
        OSError, match=f"blob {blob.sha256} is damaged: its {left} bytes hash to"
    ):
        place.blobs.restore(blob.sha256, target, directory=directory)
    assert not target.exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert place.blobs.put_beneath(source.parent, source.name) == blob
    place.blobs.restore(blob.sha256, target, directory=directory)
    assert target.exists()


def test_a_blob_with_other_content_is_an_oserror_and_what_was_there_stays(
    place: Place, tmp_path: Path
):
    blob = place.blobs.put(io.BytesIO(b"weights"))
    place.write(blob.sha256, b"weighty")
    (tmp_path / "model.pt").write_bytes(b"before")
    with pytest.raises(OSError, match="is damaged"):
        place.blobs.restore(blob.sha256, tmp_path / "model.pt", directory=False)
    assert (tmp_path / "model.pt").read_bytes() == b"before"


def test_a_small_blob_is_read_at_once_and_a_large_one_only_so_far(store: Blobs) -> None:
    small = store.put(io.BytesIO(b"hello"))
    large = store.put(io.BytesIO(BIG))
    assert (store.read(small.sha256, 5), store.read(small.sha256, 100)) == (
        b"hello",
        b"hello",
    )
    assert store.read(large.sha256, 1000) == BIG[:1000]
    with pytest.raises(FileNotFoundError):
        store.read("0" * 64, 100)
    with pytest.raises(ValueError, match="is not a SHA-256"):
        store.read("../secret", 100)


def test_a_deleted_blob_is_gone_and_others_stay(store: Blobs):
    one = store.put(io.BytesIO(b"one"))
    two = store.put(io.BytesIO(b"two"))
    store.delete(one.sha256)
    store.delete(one.sha256)
    assert (store.has(one.sha256), store.has(two.sha256)) == (False, True)


@pytest.mark.parametrize(
    "name",
    ["", "../../etc/passwd", "0" * 63, "0" * 65, "G" * 64, "A" * 64, "0" * 64 + "\n"],
)
def test_a_name_that_is_no_hash_is_refused(store: Blobs, name: str):
    for act in (store.has, store.open, store.delete):
        with pytest.raises(ValueError, match="is not a SHA-256 in hex"):
            act(name)


def test_half_written_blobs_are_swept_and_whole_ones_stay(place: Place):
    blob = place.blobs.put(io.BytesIO(b"whole"))
    if isinstance(place.blobs, BlobStore):
        (place.blobs.root / "incoming-killed").write_bytes(b"half")
    place.blobs.sweep()
    assert place.names() == [name_of(blob.sha256)]


def test_a_blob_that_is_being_written_is_not_swept(local: BlobStore):
    incoming = local.incoming()
    incoming.write([b"half"])
    BlobStore(local.root).sweep()
    incoming.write([b" and half"])
    blob = incoming.blob()
    incoming.keep()
    incoming.close()
    assert local.read(blob.sha256, 100) == b"half and half"


def test_incomplete_files_are_swept_where_locks_need_the_right_to_write(
    local: BlobStore, monkeypatch: pytest.MonkeyPatch
):
    """As on NFS: flock(2)."""
    flock = fcntl.flock

    def flock_of_nfs(file: IO[bytes] | int, kind: int) -> None:
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(file, kind)

    monkeypatch.setattr(fcntl, "flock", flock_of_nfs)
    local.root.mkdir(parents=True, exist_ok=True)
    (local.root / "incoming-killed").write_bytes(b"half")
    local.sweep()
    assert [*local.root.iterdir()] == []


def test_blobs_are_their_owners_alone(local: BlobStore):
    blob = local.put(io.BytesIO(b"x"))
    assert [
        path.stat().st_mode & 0o077
        for path in (
            local.root,
            local.path(blob.sha256).parent,
            local.path(blob.sha256),
        )
    ] == [0] * 3


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint-100"
    (folder / "deep" / "empty").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(BIG)
    (folder / "deep" / "größe, und mehr.json").write_text("{}")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "latest").symlink_to("model.safetensors")
    return folder


def tree(folder: Path) -> dict[str, object]:
    def content(path: Path) -> object:
        if path.is_symlink():
            return str(path.readlink())
        return path.read_bytes() if path.is_file() else None

    return {str(path.relative_to(folder)): content(path) for path in folder.rglob("*")}


def test_a_directory_comes_back_as_it_was(
    store: Blobs, checkpoint: Path, tmp_path: Path
):
    blob = store.put_beneath(checkpoint.parent, checkpoint.name)
    with store.open(blob.sha256) as file:
        archive = file.read()
    assert Blob(hashlib.sha256(archive).hexdigest(), len(archive)) == blob
    restored = tmp_path / "resume" / "checkpoint-100"
    store.restore(blob.sha256, restored, directory=True)
    assert tree(restored) == tree(checkpoint)
    assert os.access(restored / "run.sh", os.X_OK)
    (restored / "model.safetensors").unlink()
    store.restore(blob.sha256, restored, directory=True)
    assert tree(restored) == tree(checkpoint)
    assert [path.name for path in restored.parent.iterdir()] == ["checkpoint-100"]


def test_a_directory_with_the_same_content_has_the_same_hash(
    store: Blobs, checkpoint: Path
):
    first = store.put_beneath(checkpoint.parent, checkpoint.name)
    for path in checkpoint.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    assert store.put_beneath(checkpoint.parent, checkpoint.name) == first
    (checkpoint / "run.sh").write_text("#!/bin/bash\n")
    assert store.put_beneath(checkpoint.parent, checkpoint.name) != first


def test_a_directory_that_does_not_fit_leaves_nothing(tmp_path: Path):
    with small_disk(tmp_path / "disk") as disk:
        full = BlobStore(disk / "blobs")
        folder = tmp_path / "folder"
        folder.mkdir()
        (folder / "big").write_bytes(BIG)
        with pytest.raises(OSError, match="No space left"):
            full.put_beneath(tmp_path, "folder")
        assert files(full) == []


def test_a_target_on_a_full_disk_is_an_oserror_and_leaves_nothing(
    store: Blobs, checkpoint: Path, tmp_path: Path
):
    file = store.put(io.BytesIO(BIG))
    folder = store.put_beneath(checkpoint.parent, checkpoint.name)
    with small_disk(tmp_path / "disk") as disk:
        for blob, directory in ((file, False), (folder, True)):
            with pytest.raises(OSError, match="No space left"):
                store.restore(blob.sha256, disk / "back", directory=directory)
            assert list(disk.iterdir()) == []


@pytest.mark.parametrize("link", ["/etc/passwd", "../../outside"])
def test_a_link_that_leads_out_is_an_oserror_on_the_way_back(
    store: Blobs, tmp_path: Path, link: str
):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        info = tarfile.TarInfo("link")
        info.type = tarfile.SYMTYPE
        info.linkname = link
        tar.addfile(info)
    archive.seek(0)
    blob = store.put(archive)
    with pytest.raises(OSError, match="cannot be unpacked"):
        store.restore(blob.sha256, tmp_path / "back", directory=True)


def test_a_hostile_archive_writes_nothing_outside(store: Blobs, tmp_path: Path):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("../escaped"), io.BytesIO())
    archive.seek(0)
    blob = store.put(archive)
    with pytest.raises(OSError, match="cannot be unpacked"):
        store.restore(blob.sha256, tmp_path / "deep" / "back", directory=True)
    assert not (tmp_path / "deep" / "escaped").exists()


def test_a_blob_that_is_no_archive_is_an_oserror(store: Blobs, tmp_path: Path):
    blob = store.put(io.BytesIO(b"no tar" * 1000))
    with pytest.raises(OSError, match="cannot be unpacked"):
        store.restore(blob.sha256, tmp_path / "back", directory=True)


@pytest.mark.parametrize(
    "part",
    [(0, 1), (5, 9), (0, len(BIG)), (3_000_000, 12_000_000), (len(BIG) - 1, len(BIG))],
)
def test_a_part_of_a_blob(store: Blobs, part: tuple[int, int]):
    blob = store.put(io.BytesIO(BIG))
    with store.open(blob.sha256, part) as file:
        assert file.read() == BIG[slice(*part)]


def test_a_part_of_what_is_not_there(store: Blobs):
    with pytest.raises(FileNotFoundError):
        store.open("0" * 64, (0, 1))


def test_a_check_leaves_nothing(place: Place):
    place.blobs.check()
    assert place.names() == []


def test_a_check_of_a_full_disk(tmp_path: Path):
    with small_disk(tmp_path / "disk") as disk:
        fill(disk / "ballast")
        with pytest.raises(OSError, match="No space left"):
            BlobStore(disk / "blobs").check()


def test_no_password_is_shown_of_what_is_no_place():
    with pytest.raises(InvalidInputError, match="no place") as caught:
        open_blobs("http://me:hunter2@host/x", {})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["blobs", "", "s4://x", "http://127.0.0.1/x", "file://host/x", "C:\\blobs"]
)
def test_what_is_no_place_for_blobs_is_said(url: str):
    with pytest.raises(
        InvalidInputError,
        match=r"storage: .* is no place for blobs .an absolute path, or a bucket",
    ):
        open_blobs(url, {})


def test_a_directory_by_its_url(tmp_path: Path):
    for url in (f"{tmp_path}/größe", f"file://{tmp_path}/gr%C3%B6%C3%9Fe"):
        blobs = open_blobs(url, {})
        assert isinstance(blobs, BlobStore)
        assert blobs.root == tmp_path / "größe"
