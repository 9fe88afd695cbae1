"""Checkpoints on their way between the server's blob store and a machine that has
joined, over connections of their own.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from typing import IO, cast

from gpuyard.domain import wire, wire_frames
from gpuyard.domain.contents import PART_BYTES
from gpuyard.domain.errors import RefusedError
from gpuyard.providers.callers import Caller
from gpuyard.providers.link import Message
from gpuyard.storage.place import in_background

# A machine that takes or sends nothing for so long is given up.
_STALLED_S = 20.0
_IN_MEMORY = 1 << 20


async def receive_blob(
    request: wire.StoreBlob,
    caller: Caller,
    messages: AsyncIterator[Message],
) -> None:
    """Store what the parts in `messages` bring. RefusedError if it is something else
    than the request says; OSError when it cannot be stored.
    """
    caller.check_store(request)
    received = 0
    with tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=str(caller.scratch)) as spooled:
        file = cast("IO[bytes]", spooled)
        while not (part := await _next_part(messages)).end:
            received += len(part.data)
            if received > request.size:
                raise RefusedError("The checkpoint is larger than was said.")
            await asyncio.to_thread(file.write, part.data)
        file.seek(0)
        blob = await in_background(caller.blobs.put, file)
    if blob.sha256 != request.sha256:
        raise RefusedError(
            f"The checkpoint hashes to {blob.sha256}, and not to {request.sha256}."
        )
    caller.stored(request)


async def _next_part(messages: AsyncIterator[Message]) -> wire.BlobPart:
    async with asyncio.timeout(_STALLED_S):
        async for message in messages:
            if isinstance(message, wire.BlobPart):
                return message
            break
    raise ConnectionError("the connection ended before the checkpoint did")


async def send_blob(
    request: wire.FetchBlob, caller: Caller, writer: asyncio.StreamWriter
) -> None:
    """Send the checkpoint from which an attempt resumes. RefusedError, OSError;
    TimeoutError when the machine takes nothing.
    """
    sha256 = caller.blob_to_resume(request.attempt_id)
    try:
        file = await in_background(caller.blobs.open, sha256)
    except FileNotFoundError:
        await _send(wire.ContentPart(missing=True), writer)
        return
    with file:
        while data := await in_background(file.read, PART_BYTES):
            await _send(wire.ContentPart(data), writer)
    await _send(wire.ContentPart(end=True), writer)


async def _send(message: wire.ContentPart, writer: asyncio.StreamWriter) -> None:
    writer.write(wire_frames.encode(message))
    try:
        async with asyncio.timeout(_STALLED_S):
            await writer.drain()
    except TimeoutError:
        writer.transport.abort()  # close() would wait for it
        raise
