"""Files of prompts in the blob store."""

import hashlib
import io
from collections.abc import Sequence

from gpuyard.storage.blobs import Blobs
from gpuyard.storage.place import in_background
from gpuyard.verification.context import Context, call
from gpuyard.verification.prompts import MAX_PROMPT_BYTES, to_file


class DamagedFileError(OSError):
    """A stored file is not what was stored."""


async def keep_files(context: Context, files: Sequence[Sequence[str]]) -> list[str]:
    """Store a file of each of these prompts, and note it as an upload until a row names it; their SHA-256.

    OSError when the store fails.
    """
    contents = [to_file(prompts) for prompts in files]
    names = [hashlib.sha256(content).hexdigest() for content in contents]
    await call(context.records.note_uploads, names)
    await in_background(_put_all, context.blobs, contents)
    return names


async def read_file(context: Context, blob: str, count: int) -> tuple[str, ...]:
    """The `count` prompts of a stored file; OSError (FileNotFoundError when it is gone) or DamagedFileError."""
    return split_file(await in_background(read_blob, context.blobs, blob, count))


def read_blob(blobs: Blobs, blob: str, count: int) -> bytes:
    """The bytes of a file of `count` prompts, which were checked when it was made: it still hashes to its name."""
    with blobs.open(blob) as file:
        data = file.read(count * (MAX_PROMPT_BYTES + 1) + 1)
    if hashlib.sha256(data).hexdigest() != blob:
        raise DamagedFileError(f"the file {blob} is damaged")
    return data


def split_file(data: bytes) -> tuple[str, ...]:
    """The prompts in the bytes of a stored file."""
    return tuple(data.decode().removesuffix("\n").split("\n"))


def _put_all(blobs: Blobs, contents: Sequence[bytes]) -> None:
    for content in contents:
        blobs.put(io.BytesIO(content))
