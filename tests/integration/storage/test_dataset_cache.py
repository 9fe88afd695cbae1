"""Copies of datasets on a node: whole, read-only, made again when they have changed, and
removed when others need their place.
"""

import asyncio
import hashlib
import io
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuyard.domain.contents import ContentKind
from gpuyard.domain.datasets import DatasetMount, Manifest, chunk_sizes
from gpuyard.node.dataset_copies import NodeDatasets
from gpuyard.storage import dataset_cache
from gpuyard.storage.blobs import BlobStore
from gpuyard.storage.dataset_cache import ChunkReader, DatasetCache, InUseError
from gpuyard.storage.dataset_store import (
    DatasetMissingError,
    missing,
    put_manifest,
    read_part,
    remove_abandoned,
    remove_unused,
)
from gpuyard.storage.untrusted import UntrustedFileError
from tests.support.wait import wait_until


class Place:
    """A store of datasets, and a cache of `limit` bytes."""

    def __init__(self, root: Path, limit: int = 1_000_000) -> None:
        self.blobs = BlobStore(root / "blobs")
        self.in_use: dict[str, bool] = {}
        self.root = root / "cache"
        self.cache = DatasetCache(self.root, limit, lambda: self.in_use)

    def store(self, files: dict[str, bytes]) -> Manifest:
        ordered = sorted(files)
        stream = io.BytesIO(b"".join(files[path] for path in ordered))
        chunks: list[tuple[str, int]] = []
        for size in chunk_sizes([(path, len(files[path])) for path in ordered]):
            content = stream.read(size)
            digest = hashlib.sha256(content).hexdigest()
            self.blobs.put(io.BytesIO(content))
            chunks.append((digest, size))
        found = Manifest(
            [(path, len(files[path]), path.endswith(".sh")) for path in ordered], chunks
        )
        assert put_manifest(self.blobs, found) == found.digest
        return found

    def make(self, manifest: Manifest) -> Path:
        self.cache.make_room(manifest.size)
        reader = ChunkReader(manifest, lambda digest: read_part(self.blobs, digest))
        self.cache.begin(manifest.digest).build(manifest, reader)
        return self.cache.folder(manifest.digest)

    def kept(self) -> set[str]:
        return {path.name for path in self.root.iterdir()}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


FILES = {
    "a/b/deep.txt": b"deep",
    "empty": b"",
    "large.bin": os.urandom(3 << 20),
    "run.sh": b"#!/bin/sh\n",
}


def test_a_copy_has_all_files_and_may_only_be_read(place: Place) -> None:
    place.cache = DatasetCache(place.root, 1 << 30, lambda: place.in_use)
    manifest = place.store(FILES)
    assert not place.cache.use(manifest.digest)
    folder = place.make(manifest)
    found = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert found == FILES
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.rglob("*")}
    assert (modes["deep.txt"], modes["run.sh"], modes["b"]) == (0o444, 0o555, 0o555)
    assert place.cache.use(manifest.digest)


@pytest.mark.parametrize("change", ["content", "removal", "link"])
def test_a_copy_that_was_changed_is_made_again(place: Place, change: str) -> None:
    manifest = place.store({"file": b"content", "other": b"more"})
    file = place.make(manifest) / "file"
    file.parent.chmod(0o755)
    file.chmod(0o644)
    if change == "content":
        file.write_bytes(b"CONTENT")
    else:
        file.unlink()
    if change == "link":
        file.symlink_to("other")
    assert not place.cache.use(manifest.digest)
    assert (place.make(manifest) / "file").read_bytes() == b"content"
    assert place.cache.use(manifest.digest)


def test_it_is_not_made_again_under_a_job_that_reads_it(place: Place) -> None:
    manifest = place.store({"file": b"content"})
    folder = place.make(manifest)
    place.in_use = {manifest.digest: True}
    with pytest.raises(InUseError):
        place.cache.begin(manifest.digest)
    assert (folder / "file").exists()
    place.in_use = {manifest.digest: False}
    assert place.make(manifest) == folder


def test_after_a_reboot_its_content_is_looked_at_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = place.store({"file": b"content", "other": b"more"})
    torn = place.store({"file": b"another"})
    place.make(whole)
    file = place.make(torn) / "file"
    before = file.stat()
    file.chmod(0o644)
    file.write_bytes(b"\0" * 7)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert place.cache.use(torn.digest), "nobody looks as long as the host is up"
    monkeypatch.setattr(dataset_cache, "boot_id", lambda: "another boot")
    assert place.cache.use(whole.digest)
    assert not place.cache.use(torn.digest)


def test_those_that_were_not_used_for_longest_make_room(tmp_path: Path) -> None:
    place = Place(tmp_path, limit=3000)
    made = [place.store({"file": bytes([number]) * 1000}) for number in range(5)]
    for at, manifest in enumerate(made[:3]):
        place.make(manifest)
        os.utime(place.root / manifest.digest, (1000 + at, 1000 + at))
    assert place.cache.use(made[0].digest)
    place.make(made[3])
    assert place.kept() == {made[n].digest for n in (0, 2, 3)}
    place.in_use = {made[2].digest: True}
    os.utime(place.root / made[3].digest, (2000, 2000))
    place.make(made[4])
    assert place.kept() == {made[n].digest for n in (0, 2, 4)}


def test_one_that_is_larger_than_the_limit_is_made_all_the_same(tmp_path: Path) -> None:
    place = Place(tmp_path, limit=10)
    first = place.store({"file": b"x" * 100})
    second = place.store({"file": b"y" * 100})
    place.make(first)
    place.make(second)
    assert place.kept() == {second.digest}


def test_a_disk_without_room_is_told_before_anything_is_written(place: Place) -> None:
    with pytest.raises(OSError, match="has no room for"):
        place.cache.make_room(1 << 60)


def test_what_a_killed_agent_has_left_is_no_copy(place: Place) -> None:
    manifest = place.store({"a/file": b"content"})
    place.cache.begin(manifest.digest)
    assert not place.cache.use(manifest.digest)
    assert (place.make(manifest) / "a/file").read_bytes() == b"content"
    assert place.kept() == {manifest.digest}


def test_a_chunk_that_is_gone_or_damaged_leaves_no_copy(place: Place) -> None:
    manifest = place.store({"file": b"content"})
    ((digest, _),) = manifest.chunks
    path = place.blobs.path(digest)
    path.chmod(0o644)
    path.write_bytes(b"CONTENT")
    with pytest.raises(DatasetMissingError, match="damaged"):
        place.make(manifest)
    path.unlink()
    with pytest.raises(DatasetMissingError, match="no longer stored"):
        place.make(manifest)
    assert not place.cache.use(manifest.digest)


def test_nothing_is_written_through_a_link_that_a_job_puts_there(
    place: Place, tmp_path: Path
) -> None:
    others = tmp_path / "others"
    others.mkdir()
    manifest = place.store({"a/1": b"x" * (9 << 20), "b": b"y" * (2 << 20)})
    fresh = place.root / f"{manifest.digest}.new" / "files"

    def swapped(digest: str) -> bytes:
        if not fresh.is_symlink():
            fresh.rename(tmp_path / "moved")
            fresh.symlink_to(others)
        return read_part(place.blobs, digest)

    builder = place.cache.begin(manifest.digest)
    builder.build(manifest, ChunkReader(manifest, swapped))
    assert not list(others.iterdir())
    assert not place.cache.use(manifest.digest)
    assert (place.make(manifest) / "b").read_bytes() == b"y" * (2 << 20)


@pytest.mark.parametrize("name", ["facts.json", "manifest", "files/file"])
@pytest.mark.parametrize("kind", ["pipe", "endless"])
def test_a_pipe_or_an_endless_file_is_no_copy(
    place: Place, name: str, kind: str
) -> None:
    manifest = place.store({"file": b"content"})
    path = place.make(manifest).parent / name
    path.parent.chmod(0o755)
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    assert not place.cache.use(manifest.digest)
    assert place.make(manifest)
    assert place.cache.use(manifest.digest)


def test_a_link_in_place_of_a_copy_goes_and_what_it_leads_to_stays(
    place: Place, tmp_path: Path
) -> None:
    others = tmp_path / "others"
    (others / "inner").mkdir(parents=True)
    (others / "inner").chmod(0o500)
    others.chmod(0o500)
    manifest = place.store({"file": b"content"})
    place.root.mkdir()
    (place.root / manifest.digest).symlink_to(others)
    assert not place.cache.use(manifest.digest)
    assert (place.make(manifest) / "file").read_bytes() == b"content"
    modes = [path.stat().st_mode & 0o777 for path in (others, others / "inner")]
    assert modes == [0o500, 0o500]


def test_no_link_is_followed_on_the_way_through_a_folder_of_jobs(
    place: Place, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    others = tmp_path / "others"
    others.mkdir()
    (spool / "datasets").symlink_to(others)
    root = spool / "datasets" / "copies"
    place.cache = DatasetCache(root, 1000, lambda: place.in_use, within=spool)
    manifest = place.store({"file": b"content"})
    assert not place.cache.use(manifest.digest)
    with pytest.raises(UntrustedFileError, match="lies below a link"):
        place.make(manifest)
    assert not list(others.iterdir())


def test_removing_a_version_keeps_what_others_have(place: Place) -> None:
    first = place.store({"a": b"1", "large": b"2" * (1 << 20)})
    second = place.store({"b": b"3", "large": b"2" * (1 << 20)})
    remove_unused(place.blobs, [first.digest], [second.digest])
    assert missing(place.blobs, second.digests) == []
    assert len(missing(place.blobs, first.digests)) == 1
    assert not place.blobs.has(first.digest)
    remove_unused(place.blobs, [second.digest], [])
    assert not list(place.blobs.root.glob("??/*"))


def test_chunks_of_an_upload_that_nobody_finished_are_removed(tmp_path: Path):
    place = Place(tmp_path)
    kept = place.store({"a": b"kept"})
    abandoned = hashlib.sha256(b"abandoned").hexdigest()
    fresh = hashlib.sha256(b"fresh").hexdigest()
    for content in (b"abandoned", b"fresh"):
        place.blobs.put(io.BytesIO(content))
    for digest in (abandoned, *kept.digests):
        os.utime(place.blobs.path(digest), (1000.0, 1000.0))
    old = place.blobs.older_than(2000.0)
    assert remove_abandoned(place.blobs, old, [kept.digest]) == 1
    gone = missing(place.blobs, [abandoned, fresh, kept.digest, *kept.digests])
    assert gone == [abandoned]


class Parts:
    """Gives the parts of a version with four chunks, each when it is `asked_for`."""

    def __init__(self, place: Place) -> None:
        files = {f"{number}.bin": bytes([number]) * (1 << 20) for number in range(4)}
        self.manifest = place.store(files)
        self.mount = DatasetMount("GPUYARD_X", "default", self.manifest.digest)
        self.asked = 0
        self.go_on = threading.Event()
        self._blobs = place.blobs

    def read(self, _kind: ContentKind, _mount: DatasetMount, digest: str) -> bytes:
        self.asked += 1
        # The manifest and a chunk come at once.
        if self.asked > 2:
            assert self.go_on.wait(60)
        return read_part(self._blobs, digest)


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait in an event loop."""
    await asyncio.to_thread(wait_until, condition, 60, what)


def test_who_is_cancelled_does_not_wait_for_the_copy(tmp_path: Path):
    place = Place(tmp_path, limit=10_000_000)
    parts = Parts(place)
    datasets = NodeDatasets(place.cache, parts.read)

    async def program() -> None:
        stopped = threading.Event()
        cancelled = asyncio.create_task(datasets.have([parts.mount], stopped.is_set))
        await until(lambda: parts.asked == 3, "it waits for the second chunk")
        stopped.set()
        await asyncio.wait_for(cancelled, 60)
        parts.go_on.set()
        await until(lambda: not datasets._making, "the copying has stopped")
        assert parts.asked == 3, "it stops before the next part"
        assert not place.kept()
        await datasets.have([parts.mount])
        assert place.cache.use(parts.manifest.digest)

    asyncio.run(program())


def test_a_copy_that_another_job_waits_for_is_made(tmp_path: Path):
    place = Place(tmp_path, limit=10_000_000)
    parts = Parts(place)
    datasets = NodeDatasets(place.cache, parts.read)

    async def program() -> None:
        stopped = threading.Event()
        cancelled = asyncio.create_task(datasets.have([parts.mount], stopped.is_set))
        await until(lambda: parts.asked == 3, "it waits for the second chunk")
        other = asyncio.create_task(datasets.have([parts.mount]))
        await asyncio.sleep(0)  # it begins to wait
        stopped.set()
        await asyncio.wait_for(cancelled, 60)
        parts.go_on.set()
        await asyncio.wait_for(other, 60)

    asyncio.run(program())
    assert parts.asked == 5, "each part once"
    assert place.cache.use(parts.manifest.digest)
