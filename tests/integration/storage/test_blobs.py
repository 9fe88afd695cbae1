"""The blob store: whole or not at all, under the right hash, and back as it was."""

import errno
import hashlib
import io
import os
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpuyard.storage.blobs import Blob, BlobStore
from tests.support.tmpfs import fill, small_disk

BIG = os.urandom(3_000_000)  # more than one chunk


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def files(store: BlobStore) -> list[Path]:
    return sorted(path for path in store.root.rglob("*") if path.is_file())


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


@pytest.mark.parametrize("content", [b"", b"weights", BIG], ids=["empty", "small", "big"])
def test_a_blob_is_stored_under_its_hash(store: BlobStore, content: bytes):
    digest = hashlib.sha256(content).hexdigest()
    assert not store.has(digest)
    assert store.put(io.BytesIO(content)) == Blob(digest, len(content))
    assert store.has(digest)
    with store.open(digest) as file:
        assert file.read() == content
    assert files(store) == [store.root / digest[:2] / digest[2:]]


def test_a_blob_is_there_only_when_it_is_whole(store: BlobStore):
    digest = hashlib.sha256(BIG).hexdigest()
    seen = []
    store.put(Source(BIG, lambda: seen.append((store.has(digest), [path.name[:9] for path in files(store)]))))
    assert seen == [(False, ["incoming-"])]
    assert store.has(digest)


def test_a_source_that_breaks_off_leaves_nothing(store: BlobStore):
    def break_off() -> None:
        raise OSError("the disk it is on was pulled out")

    with pytest.raises(OSError, match="pulled out"):
        store.put(Source(BIG, break_off))
    assert files(store) == []


def test_the_same_bytes_are_stored_once(store: BlobStore):
    with ThreadPoolExecutor(8) as pool:
        blobs = set(pool.map(lambda _: store.put(io.BytesIO(BIG)), range(8)))
    assert len(blobs) == 1
    assert len(files(store)) == 1


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


def test_what_is_restored_is_a_copy(store: BlobStore, tmp_path: Path):
    blob = store.put(io.BytesIO(b"weights"))
    target = tmp_path / "deep" / "down" / "model.pt"
    store.restore(blob.sha256, target, directory=False)
    assert target.read_bytes() == b"weights"
    target.write_bytes(b"changed")
    with store.open(blob.sha256) as file:
        assert file.read() == b"weights"


def test_what_is_not_there(store: BlobStore, tmp_path: Path):
    missing = "0" * 64
    with pytest.raises(FileNotFoundError):
        store.open(missing)
    with pytest.raises(FileNotFoundError):
        store.restore(missing, tmp_path / "x", directory=False)
    store.delete(missing)


def test_a_deleted_blob_is_gone_and_others_stay(store: BlobStore):
    one, two = store.put(io.BytesIO(b"one")), store.put(io.BytesIO(b"two"))
    store.delete(one.sha256)
    store.delete(one.sha256)
    assert (store.has(one.sha256), store.has(two.sha256)) == (False, True)


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "0" * 63, "0" * 65, "G" * 64, "A" * 64, "0" * 64 + "\n"])
def test_a_name_that_is_no_hash_is_refused(store: BlobStore, name: str):
    for act in (store.path, store.has, store.open, store.delete):
        with pytest.raises(ValueError, match="is not a SHA-256 in hex"):
            act(name)


def test_half_written_blobs_are_swept_and_whole_ones_stay(store: BlobStore):
    blob = store.put(io.BytesIO(b"whole"))
    (store.root / "incoming-killed").write_bytes(b"half")
    store.sweep()
    assert files(store) == [store.path(blob.sha256)]


def test_blobs_are_their_owners_alone(store: BlobStore):
    blob = store.put(io.BytesIO(b"x"))
    assert [
        path.stat().st_mode & 0o077 for path in (store.root, store.path(blob.sha256).parent, store.path(blob.sha256))
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


def test_a_directory_comes_back_as_it_was(store: BlobStore, checkpoint: Path, tmp_path: Path):
    blob = store.put_directory(checkpoint)
    assert hashlib.sha256(store.path(blob.sha256).read_bytes()).hexdigest() == blob.sha256
    assert store.path(blob.sha256).stat().st_size == blob.size
    restored = tmp_path / "resume" / "checkpoint-100"
    store.restore(blob.sha256, restored, directory=True)
    assert tree(restored) == tree(checkpoint)
    assert os.access(restored / "run.sh", os.X_OK)


def test_a_directory_with_the_same_content_has_the_same_hash(store: BlobStore, checkpoint: Path):
    first = store.put_directory(checkpoint)
    for path in checkpoint.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    assert store.put_directory(checkpoint) == first
    (checkpoint / "run.sh").write_text("#!/bin/bash\n")
    assert store.put_directory(checkpoint) != first


def test_a_directory_that_does_not_fit_leaves_nothing(tmp_path: Path):
    with small_disk(tmp_path / "disk") as disk:
        full = BlobStore(disk / "blobs")
        folder = tmp_path / "folder"
        folder.mkdir()
        (folder / "big").write_bytes(BIG)
        with pytest.raises(OSError, match="No space left"):
            full.put_directory(folder)
        assert files(full) == []


@pytest.mark.parametrize("link", ["/etc/passwd", "../../outside"])
def test_a_link_that_leads_out_is_an_oserror_on_the_way_back(store: BlobStore, tmp_path: Path, link: str):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(link)
    blob = store.put_directory(folder)
    with pytest.raises(OSError, match="cannot be unpacked"):
        store.restore(blob.sha256, tmp_path / "back", directory=True)


def test_a_hostile_archive_writes_nothing_outside(store: BlobStore, tmp_path: Path):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("../escaped"), io.BytesIO())
    archive.seek(0)
    blob = store.put(archive)
    with pytest.raises(OSError, match="cannot be unpacked"):
        store.restore(blob.sha256, tmp_path / "deep" / "back", directory=True)
    assert not (tmp_path / "deep" / "escaped").exists()


def test_a_blob_that_is_no_archive_is_an_oserror(store: BlobStore, tmp_path: Path):
    blob = store.put(io.BytesIO(b"no tar" * 1000))
    with pytest.raises(OSError, match="cannot be unpacked"):
        store.restore(blob.sha256, tmp_path / "back", directory=True)
