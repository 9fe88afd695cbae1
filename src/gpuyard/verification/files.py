"""Files of prompts in the blob store."""

import asyncio
import hashlib
import io
from collections.abc import Sequence

from gpuyard.storage.blobs import Blobs
from gpuyard.storage.place import in_background
from gpuyard.verification.context import Context, call
from gpuyard.verification.prompts import MAX_PROMPT_BYTES, to_file


class DamagedFileError(OSError):
    """A stored file is not what was stored."""


LOST = (FileNotFoundError, DamagedFileError)
"""Faults of a file that will not go by."""


async def keep_files(context: Context, files: Sequence[Sequence[str]]) -> list[str | OSError]:
    """Store a file of each of these prompts, and note it as an upload until a row names it; the SHA-256 of each, or why
    it could not be stored."""
    contents = [to_file(prompts) for prompts in files]
    names = [hashlib.sha256(content).hexdigest() for content in contents]
    await call(context.records.note_uploads, names)
    puts = [in_background(_put, context.blobs, content) for content in contents]
    return [fault or name for fault, name in zip(await asyncio.gather(*puts), names, strict=True)]


async def read_file(context: Context, blob: str, count: int) -> tuple[str, ...]:
    """The `count` prompts of a stored file; OSError (FileNotFoundError when it is gone) or DamagedFileError."""
    return split_file(await in_background(read_blob, context.blobs, blob, count))


def read_prompt(blobs: Blobs, blob: str, count: int, place: int) -> str:
    """One of the `count` prompts of a file, by its place from 0. The rest is not looked at: most of the time would go
    into that, and whoever uses the file whole sees whether it is damaged."""
    data = _read(blobs, blob, count)
    try:
        from_start = place < count // 2
        line = data.split(b"\n", place + 1)[place] if from_start else data.rsplit(b"\n", count - place + 1)[1]
        if not data.endswith(b"\n"):
            raise ValueError("it is cut off")
        return line.decode()
    except (IndexError, ValueError) as error:
        raise DamagedFileError(f"the file {blob} is damaged: {error}") from None


def read_blob(blobs: Blobs, blob: str, count: int) -> bytes:
    """The bytes of a file of `count` prompts, which were checked when it was made: it still hashes to its name."""
    data = _read(blobs, blob, count)
    if hashlib.sha256(data).hexdigest() != blob:
        raise DamagedFileError(f"the file {blob} is damaged")
    return data


def _read(blobs: Blobs, blob: str, count: int) -> bytes:
    return blobs.read(blob, count * (MAX_PROMPT_BYTES + 1) + 1)


def split_file(data: bytes) -> tuple[str, ...]:
    """The prompts in the bytes of a stored file."""
    return tuple(data.decode().removesuffix("\n").split("\n"))


def _put(blobs: Blobs, content: bytes) -> OSError | None:
    try:
        blobs.put(io.BytesIO(content))
    except OSError as error:
        return error
    return None
