"""The blobs of a machine that has joined: its checkpoints go to the server, and come
from there, over connections of their own.

A checkpoint is packed into the store of this home first, and stays there only until the
server has it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path, PurePath
from typing import IO, Any

from gpuyard.domain import wire, wire_frames
from gpuyard.domain.contents import PART_BYTES
from gpuyard.node.link import ServerAddress, open_link, read_answer
from gpuyard.storage.blobs import Blob, Blobs, BlobStore, BucketError
from gpuyard.storage.untrusted import folder_beneath

_ANSWER_S = 60.0
_DRAIN_S = 20.0


class BlobLink:
    """Moves blobs over connections to the server with which the agent is linked.
    `server()` is its address, None while there is no link.
    """

    def __init__(self, server: Callable[[], ServerAddress | None]) -> None:
        self._server = server
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        """Call this in the event loop of the agent."""
        self._loop = asyncio.get_running_loop()

    def store(self, attempt_id: str, blob: Blob, path: Path) -> None:
        """Let the server store a file; OSError. Call it from a thread."""
        self._run(self._store(attempt_id, blob, path))

    def fetch(self, attempt_id: str, write: Callable[[bytes], object]) -> bool:
        """Fetch the checkpoint from which an attempt resumes; False if the server has
        it no longer. OSError. Call it from a thread.
        """
        return self._run(self._fetch(attempt_id, write))

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        assert self._loop
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except (EOFError, ValueError, TimeoutError) as error:
            raise BucketError(
                f"the server did not move a checkpoint: {error or 'it is too slow'}"
            ) from None
        except ConnectionError as error:
            raise BucketError(f"the server is not connected: {error}") from None

    def _address(self) -> ServerAddress:
        address = self._server()
        if address is None:
            raise ConnectionError("there is no link")
        return address

    async def _store(self, attempt_id: str, blob: Blob, path: Path) -> None:
        async with open_link(self._address()) as streams:
            reader, writer = streams
            request = wire.StoreBlob(attempt_id, blob.sha256, blob.size)
            await _write(wire_frames.encode(request), writer)
            with path.open("rb") as file:
                while data := await asyncio.to_thread(file.read, PART_BYTES):
                    await _write(wire_frames.encode(wire.BlobPart(data)), writer)
            await _write(wire_frames.encode(wire.BlobPart(end=True)), writer)
            await read_answer(reader, wire.BlobStored, _ANSWER_S)

    async def _fetch(self, attempt_id: str, write: Callable[[bytes], object]) -> bool:
        async with open_link(self._address()) as streams:
            reader, writer = streams
            await _write(wire_frames.encode(wire.FetchBlob(attempt_id)), writer)
            part = await read_answer(reader, wire.ContentPart, _ANSWER_S)
            while not part.end:
                if part.missing:
                    return False
                await asyncio.to_thread(write, part.data)
                part = await read_answer(reader, wire.ContentPart, _ANSWER_S)
        return True


async def _write(frame: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(frame)
    async with asyncio.timeout(_DRAIN_S):
        await writer.drain()


class LinkedBlobs:
    """The blobs of one attempt (`storage.store.Blobs`). `local` is the store of this
    home, in which they are packed and unpacked.
    """

    variables: tuple[str, ...] = ()

    def __init__(self, link: BlobLink, local: BlobStore, attempt_id: str) -> None:
        self._link = link
        self._local = local
        self._attempt_id = attempt_id
        self.name = "the server"

    def has(self, sha256: str) -> bool:
        """See Blobs: whether it is here."""
        return self._local.has(sha256)

    def stored_at(self, sha256: str) -> float | None:
        """See Blobs."""
        return self._local.stored_at(sha256)

    def put(self, source: IO[bytes]) -> Blob:
        """See Blobs."""
        return self._sent(self._local.put(source))

    def put_beneath(
        self, folder: Path, name: str | PurePath, *, owner: int | None = None
    ) -> Blob:
        """See Blobs."""
        return self._sent(self._local.put_beneath(folder, name, owner=owner))

    def _sent(self, blob: Blob) -> Blob:
        try:
            path = self._local.path(blob.sha256)
            self._link.store(self._attempt_id, blob, path)
        finally:
            with suppress(OSError):
                self._local.delete(blob.sha256)
        return blob

    def open(self, sha256: str, part: tuple[int, int] | None = None) -> IO[bytes]:
        """See Blobs."""
        return self._local.open(sha256, part)

    def read(self, sha256: str, most: int) -> bytes:
        """See Blobs."""
        return self._local.read(sha256, most)

    def restore(self, sha256: str, target: Path, *, directory: bool) -> None:
        """See Blobs."""
        with folder_beneath(target.parent, make=0o777) as folder:
            self.restore_in(sha256, folder, target.name, directory=directory)

    def restore_in(
        self, sha256: str, folder: int, name: str, *, directory: bool
    ) -> None:
        """See Blobs."""
        draft = self._local.root / f"resume-{self._attempt_id}"
        draft.parent.mkdir(parents=True, exist_ok=True)
        try:
            with draft.open("wb") as file:
                found = self._link.fetch(self._attempt_id, file.write)
            if not found:
                raise FileNotFoundError(f"blob {sha256} does not exist any more")
            with draft.open("rb") as file:
                self._local.put(file)
        finally:
            draft.unlink(missing_ok=True)
        try:
            self._local.restore_in(sha256, folder, name, directory=directory)
        finally:
            with suppress(OSError):
                self._local.delete(sha256)

    def delete(self, sha256: str) -> None:
        """See Blobs."""
        self._local.delete(sha256)

    def abort_unfinished(self, limit: float) -> int:
        return 0  # the server does that

    def sweep(self) -> None:
        """See Blobs."""
        self._local.sweep()

    def check(self) -> None:
        """See Blobs."""
        self._local.check()


def blobs_of(blobs: Blobs, link: BlobLink | None, attempt_id: str) -> Blobs:
    """Where the checkpoints of an attempt are: `blobs`, unless they are only in this
    home and `link` leads to the server.
    """
    if link is None or not isinstance(blobs, BlobStore):
        return blobs
    return LinkedBlobs(link, blobs, attempt_id)
