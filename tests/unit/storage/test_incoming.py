"""Chunks that come in parts: stored whole, or nothing is left of them."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.storage import dataset_store
from gpuyard.storage.blobs import BlobStore
from gpuyard.storage.dataset_store import receive_chunk

PARTS = [b"first ", b"second ", b"third"]
DIGEST = hashlib.sha256(b"".join(PARTS)).hexdigest()


async def _coming(parts: Iterable[bytes], fails: bool = False) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
    if fails:
        raise ConnectionError("the client is gone")


def _receive(store: BlobStore, digest: str, *, fails: bool = False) -> None:
    asyncio.run(receive_chunk(store, digest, _coming(PARTS, fails)))


def _files(store: BlobStore) -> list[Path]:
    return [path for path in store.root.rglob("*") if path.is_file()]


@pytest.fixture(params=[1, 1 << 20], ids=["each part at once", "all at the end"])
def store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> BlobStore:
    monkeypatch.setattr(dataset_store, "_WRITTEN_AT_ONCE", request.param)
    return BlobStore(tmp_path / "blobs")


def test_the_parts_become_one_blob(store: BlobStore) -> None:
    for _ in range(2):
        _receive(store, DIGEST)
        store.sync_names([DIGEST])
        assert store.path(DIGEST).read_bytes() == b"".join(PARTS)
        assert _files(store) == [store.path(DIGEST)]


def test_nothing_is_left_of_other_content(store: BlobStore) -> None:
    with pytest.raises(InvalidInputError, match="does not hash"):
        _receive(store, "0" * 64)
    assert _files(store) == []


def test_nothing_is_left_of_a_client_that_goes_away(store: BlobStore) -> None:
    with pytest.raises(ConnectionError):
        _receive(store, DIGEST, fails=True)
    assert _files(store) == []
