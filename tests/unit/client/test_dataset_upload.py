"""Which files are uploaded as a dataset, and what is sent of them."""

import asyncio
import hashlib
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from gpuyard.client import dataset_upload
from gpuyard.client.aio_datasets import AsyncDatasetMethods
from gpuyard.client.dataset_upload import (
    Batch,
    LocalFile,
    Tell,
    advance,
    files_of,
    upload,
)
from gpuyard.client.sync_datasets import DatasetMethods
from gpuyard.domain.datasets import CHUNK_BYTES, Dataset, read_manifest
from gpuyard.domain.errors import InvalidInputError, RefusedError

BIG = os.urandom(3 * CHUNK_BYTES + 5)


class Server:
    """Answers the calls of an upload; `sent` are the chunks that came, in order."""

    def __init__(self) -> None:
        self.stored: set[str] = set()
        self.sent: list[str] = []
        self.manifest = b""
        self.is_full = False

    def answers(self, batch: Batch) -> list[Any]:
        return [self.answer(call) for call in batch]

    def answer(self, call: Any) -> Any:
        if call.path.endswith("chunks:missing"):
            missing = set(call.body["chunks"]) - self.stored
            return call.read({"missing": list(missing)})
        if call.method == "PUT" and self.is_full:
            raise RefusedError("the disk is full")
        if call.method == "PUT":
            digest = hashlib.sha256(call.body).hexdigest()
            assert call.path.endswith(digest)
            self.stored.add(digest)
            self.sent.append(digest)
            return None
        self.manifest = call.body
        lacking = set(read_manifest(call.body).digests) - self.stored
        if lacking:
            raise RefusedError("chunks are missing")
        return Dataset(project="p", name="n", created_at=1.0)

    def take(self, path: Path, batches: int = 1_000_000) -> Any:
        """Let it upload, for so many batches at most."""
        work = upload("p", "n", path, lambda _stored, _of: None)
        step = advance(work)
        for _ in range(batches):
            if isinstance(step, Dataset):
                return step
            step = advance(work, self.answers(step))
        return None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data/sub").mkdir(parents=True)
    (tmp_path / "data/big.bin").write_bytes(BIG)
    (tmp_path / "data/sub/small.txt").write_text("words")
    (tmp_path / "data/empty").touch()
    script = tmp_path / "data/run.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    return tmp_path / "data"


def test_all_files_of_a_folder_are_uploaded(folder: Path) -> None:
    server = Server()
    server.take(folder)
    manifest = read_manifest(server.manifest)
    assert manifest.files == [
        ("big.bin", len(BIG), False),
        ("empty", 0, False),
        ("run.sh", 10, True),
        ("sub/small.txt", 5, False),
    ]
    assert len(server.sent) == len(set(server.sent)) == 5


def test_one_file_is_a_dataset_too(folder: Path) -> None:
    server = Server()
    server.take(folder / "sub/small.txt")
    assert read_manifest(server.manifest).files == [("small.txt", 5, False)]


def test_what_was_sent_is_not_sent_again(folder: Path) -> None:
    server = Server()
    server.take(folder, batches=2)
    begun = list(server.sent)
    assert begun
    server.take(folder)
    assert len(server.sent) == len(set(server.sent))
    (folder / "sub/small.txt").write_text("other words")
    server.take(folder)
    assert len(server.sent) == 6


def test_only_the_files_that_are_named_are_sent(folder: Path) -> None:
    (found,) = files_of(folder, ["sub/small.txt"])
    assert found.path == "sub/small.txt"
    with pytest.raises(InvalidInputError, match=r"gone\.txt cannot be read"):
        files_of(folder, ["gone.txt"])


def test_chunks_that_vanish_meanwhile_are_sent_again(folder: Path) -> None:
    server = Server()
    work = upload("p", "n", folder, lambda _stored, _of: None)
    step = advance(work)
    forgot = False
    while not isinstance(step, Dataset):
        if not forgot and step and step[0].path.endswith("versions"):
            forgot = True
            server.stored.clear()
        answers: Any = None
        try:
            answers = server.answers(step)
        except RefusedError as error:
            answers = error
        step = advance(work, answers)
    assert forgot
    assert set(server.sent) == set(read_manifest(server.manifest).digests)


class Carried(DatasetMethods):
    """A client whose calls a server in memory answers, some later than others."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lock = threading.Lock()

    def call(self, call: Any) -> Any:
        with self._lock:
            return self._server.answer(call)


class AsyncCarried(AsyncDatasetMethods):
    """The same for the asynchronous client."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def call(self, call: Any) -> Any:
        for _ in range(len(call.path) % 7):
            await asyncio.sleep(0)
        return self._server.answer(call)


def add(kind: str, server: Server, folder: Path, tell: Tell) -> Dataset:
    if kind == "sync":
        return Carried(server).add_dataset("n", folder, project="p", tell=tell)
    adding = AsyncCarried(server).add_dataset("n", folder, project="p", tell=tell)
    return asyncio.run(adding)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_both_clients_send_each_chunk_once_and_end_when_all_is_stored(
    kind: str, folder: Path
) -> None:
    (folder / "bigger.bin").write_bytes(os.urandom(5 * CHUNK_BYTES))
    (folder / "copy.bin").write_bytes((folder / "bigger.bin").read_bytes())
    server = Server()
    told: list[tuple[int, int]] = []
    add(kind, server, folder, lambda stored, of: told.append((stored, of)))
    assert len(server.sent) == len(set(server.sent)) == 10
    assert set(read_manifest(server.manifest).digests) == server.stored
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_server_that_takes_no_chunk_ends_the_upload(kind: str, folder: Path) -> None:
    server = Server()
    server.is_full = True
    with pytest.raises(RefusedError, match="the disk is full"):
        add(kind, server, folder, lambda _stored, _of: None)


def test_a_file_that_changes_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed_and_changed(path: Path, only: Any) -> list[LocalFile]:
        """Files are read ahead, so nothing but the list is sure to come before."""
        files = files_of(path)
        (folder / "sub/small.txt").write_text("longer words")
        return files

    monkeypatch.setattr(dataset_upload, "files_of", listed_and_changed)
    with pytest.raises(RefusedError, match=r"small\.txt changed while it was read"):
        Server().take(folder)


def test_a_link_that_takes_the_place_of_a_file_is_not_followed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.parent / "outside").write_text("words")

    def listed_and_swapped(path: Path, only: Any) -> list[LocalFile]:
        files = files_of(path)
        (folder / "sub/small.txt").unlink()
        (folder / "sub/small.txt").symlink_to(folder.parent / "outside")
        return files

    monkeypatch.setattr(dataset_upload, "files_of", listed_and_swapped)
    with pytest.raises(InvalidInputError, match=r"small\.txt cannot be read"):
        Server().take(folder)


def test_links_within_the_folder_count_as_copies(folder: Path) -> None:
    (folder / "again").symlink_to("sub/small.txt")
    found = {file.path: file.size for file in files_of(folder)}
    assert found["again"] == 5


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("/etc/hostname", "leads out"),
        ("../outside", "leads out"),
        ("sub", "a link to a folder"),
        ("gone", "cannot be read"),
    ],
)
def test_other_links_are_refused(folder: Path, target: str, words: str) -> None:
    (folder.parent / "outside").write_text("secret")
    (folder / "link").symlink_to(target)
    with pytest.raises(InvalidInputError, match=words):
        files_of(folder)


def test_special_files_are_refused(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(InvalidInputError, match="no regular file"):
        files_of(folder)


def test_names_that_cannot_be_shown_are_refused(folder: Path) -> None:
    (folder / "a\nb").touch()
    with pytest.raises(InvalidInputError, match="cannot be printed"):
        files_of(folder)


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no files"):
        files_of(tmp_path)
    with pytest.raises(InvalidInputError, match="cannot be read"):
        files_of(tmp_path / "nothing")
