"""How fast a dataset is uploaded, beside the store that its chunks go to."""

import io
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.bench import scaled, scratch, serving
from benchmarks.figures import Figure, alternate
from gpuyard.client.sync import Client
from gpuyard.domain.datasets import CHUNK_BYTES
from gpuyard.storage.blobs import BlobStore

GROUP = "datasets"
_CHUNKS = 64
_ROUNDS = 5
_AT_ONCE = 4
_MB = 1e6


def measure(scale: float) -> Iterator[Figure]:
    """Bytes that nobody has stored yet: read, hashed, sent, checked and synced by ours;
    hashed, written and synced by the store alone.
    """
    count = scaled(_CHUNKS, scale, 8)
    rounds = scaled(_ROUNDS, scale)
    with serving() as (instance, _), tempfile.TemporaryDirectory() as name:
        file = Path(name) / "data.bin"
        with Client(instance.address()) as client:
            values, floors = alternate(
                rounds,
                lambda: _upload(client, file, count),
                lambda: _store(_fresh(count)),
            )
    yield Figure(
        GROUP,
        f"upload of {count * CHUNK_BYTES / _MB:.0f} MB in one file",
        values,
        "MB/s",
        0.8,
        floors,
        "the store alone",
        least=True,
    )


def _fresh(count: int) -> list[bytes]:
    """Chunks that are nowhere yet."""
    return [os.urandom(CHUNK_BYTES) for _ in range(count)]


def _upload(client: Client, file: Path, count: int) -> float:
    file.write_bytes(b"".join(_fresh(count)))
    began = time.perf_counter()
    client.add_dataset("data", file)
    return file.stat().st_size / _MB / (time.perf_counter() - began)


def _store(chunks: Sequence[bytes]) -> float:
    with scratch() as folder, ThreadPoolExecutor(_AT_ONCE) as threads:
        store = BlobStore(folder)

        def put(chunk: bytes) -> None:
            store.put(io.BytesIO(chunk))

        began = time.perf_counter()
        list(threads.map(put, chunks))
        taken = time.perf_counter() - began
    return len(chunks) * CHUNK_BYTES / _MB / taken
