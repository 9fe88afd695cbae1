"""The place of an instance's blobs, and work with it beside the event loop."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.config.settings import StorageSettings
from gpuyard.domain.errors import InvalidInputError
from gpuyard.storage.blobs import BlobStore
from gpuyard.storage.place import open_store, problem_of, read_chunks
from gpuyard.storage.streams import as_file
from tests.support.s3 import Bucket
from tests.support.wait import wait_until


def test_by_default_it_is_in_the_home(tmp_path: Path):
    store = open_store(tmp_path, StorageSettings())
    assert isinstance(store, BlobStore)
    assert store.root == tmp_path / "blobs"
    assert store.variables == ()


def test_a_bucket_hashes_beside_the_home(bucket: Bucket, tmp_path: Path):
    """A temporary file there, and nothing left of it; without the home there is no
    place for one.
    """
    settings = StorageSettings(url=bucket.url, options={"region": "us-east-1"})
    assert asyncio.run(problem_of(open_store(tmp_path, settings))) is None
    assert list(tmp_path.iterdir()) == []
    assert "nowhere" in str(
        asyncio.run(problem_of(open_store(tmp_path / "nowhere", settings)))
    )


def test_what_is_wrong_with_it_is_said(bucket: Bucket, tmp_path: Path):
    store = open_store(tmp_path, StorageSettings(url=bucket.url))
    with bucket.away():
        assert f"There is no bucket for {bucket.url}" in str(
            asyncio.run(problem_of(store))
        )
    (tmp_path / "blobs").write_text("in the way")
    assert "exists" in str(
        asyncio.run(problem_of(open_store(tmp_path, StorageSettings())))
    )


def test_one_that_says_nothing_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("gpuyard.storage.place._CHECK_TIMEOUT_S", 0.05)
    answer = threading.Event()
    store = BlobStore(tmp_path)
    monkeypatch.setattr(store, "check", lambda: answer.wait(30))
    assert asyncio.run(problem_of(store)) == f"{tmp_path} does not answer."
    answer.set()


def test_without_its_package_it_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("obstore", "gpuyard.storage.bucket"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(
        InvalidInputError,
        match=r"storage: .*needs the package .*pip install 'gpuyard\[s3\]'",
    ):
        open_store(tmp_path, StorageSettings(url="s3://bucket"))


def test_a_download_that_nobody_wants_does_not_hold_up_the_loop():
    """Its reader is in a thread, waits for the bucket, and goes when that has
    answered.
    """
    asked = threading.Event()
    answer = threading.Event()

    def slow() -> Iterator[bytes]:
        asked.set()
        answer.wait(30)
        yield b"x"

    file = as_file(slow())

    async def scenario() -> None:
        parts = read_chunks(file)
        reading = asyncio.ensure_future(anext(parts))
        await asyncio.to_thread(asked.wait)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await parts.aclose()

    asyncio.run(scenario())
    assert not file.closed
    answer.set()
    wait_until(lambda: file.closed, what="the file to be closed")
