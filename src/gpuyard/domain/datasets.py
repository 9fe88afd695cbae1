"""Datasets: their versions, and the manifest of a version.

The files of a version, one behind the other in the order of their paths, are one stream
of bytes, which is cut into chunks. Where it is cut depends only on paths and sizes, so
versions with equal files share chunks.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import msgspec
from pydantic import AfterValidator, BaseModel

from gpuyard.domain.dataset_names import DatasetReference
from gpuyard.domain.errors import InvalidInputError, is_text, quoted
from gpuyard.domain.strict_model import StrictModel

CHUNK_BYTES = 8 << 20
"""The most that a chunk has."""
MAX_FILES = 1_000_000
# A file of at least this size has chunks of its own.
_LARGE_BYTES = 1 << 20
# Behind one small file in so many, chosen by its path, the stream is cut.
_CUT_ONE_IN = 64
_MAX_PATH = 4096
_MAX_PART = 255
_SHA256 = re.compile(r"[0-9a-f]{64}")


def is_sha256(text: str) -> bool:
    """Whether it is a SHA-256 in hex."""
    return _SHA256.fullmatch(text) is not None


def _reference(value: str) -> str:
    DatasetReference.parse(value)
    return value


Reference = Annotated[str, AfterValidator(_reference)]


class DatasetMount(msgspec.Struct, frozen=True):
    """What the node of a job needs: the `variable` that names the folder, and where the
    version is stored: under `digest`, that of its manifest, in the store of `project`.
    A container has it at `path`.
    """

    variable: str
    project: str
    # It names a folder on the node.
    digest: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z", max_length=64)]
    path: str = ""


# --- what the API shows ---


class DatasetVersion(BaseModel):
    """A version: its `digest` is the SHA-256 of its manifest, `size` is in bytes, and
    `created_at` in UTC seconds.
    """

    number: int
    digest: str
    size: int
    files: int
    created_at: float
    created_by: str | None = None


class Dataset(BaseModel):
    """A dataset and its versions, the newest first. Projects in `shared_with` may use
    it, too.
    """

    project: str
    name: str
    owner: str | None = None
    created_at: float
    shared_with: list[str] = []
    versions: list[DatasetVersion] = []


class DatasetFile(BaseModel):
    """A file of a version; `size` is in bytes."""

    path: str
    size: int
    executable: bool = False


class WantedChunks(StrictModel):
    """The SHA-256 of chunks that a client has."""

    chunks: list[str]


# --- manifests ---


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a version holds: `files` as path, size and whether it may be executed, by
    path; `chunks` as SHA-256 and size, in the order of the stream.
    """

    files: list[tuple[str, int, bool]]
    chunks: list[tuple[str, int]]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(size for _, size, _ in self.files)

    @property
    def digests(self) -> list[str]:
        """Its chunks, each once."""
        return list(dict.fromkeys(digest for digest, _ in self.chunks))

    def encoded(self) -> bytes:
        """As bytes; equal manifests have equal bytes."""
        return msgspec.json.encode(self)

    @property
    def digest(self) -> str:
        """The SHA-256 of those."""
        return hashlib.sha256(self.encoded()).hexdigest()


_decoder = msgspec.json.Decoder(Manifest)


def read_manifest(content: bytes) -> Manifest:
    """The manifest in `content`. InvalidInputError for what is none, or names files
    that cannot be.
    """
    try:
        manifest = _decoder.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError.of(
            "(body)", f"is no manifest: {error}", "let `gpuyard datasets add` make it"
        ) from None
    _check_files(manifest.files)
    _check_chunks(manifest)
    return manifest


def _check_files(files: Sequence[tuple[str, int, bool]]) -> None:
    if not 0 < len(files) <= MAX_FILES:
        raise InvalidInputError.of(
            "files", f"are {len(files)}", f"a dataset has 1 to {MAX_FILES} files"
        )
    folders: set[str] = set()
    before = ""
    for position, (path, size, _) in enumerate(files):
        field = f"files.{position}"
        if fault := path_fault(path):
            raise InvalidInputError.of(field, f"{quoted(path)} {fault}")
        if size < 0:
            raise InvalidInputError.of(field, f"has the size {size}")
        if position and path <= before:
            raise InvalidInputError.of(
                field, f"{quoted(path)} is not in order", "sort the paths, each once"
            )
        before = path
        folders.update(folders_above(path))
    for path, _, _ in files:
        if path in folders:
            raise InvalidInputError.of(
                "files", f"{quoted(path)} is a file and a folder", "give it one of them"
            )


def _check_chunks(manifest: Manifest) -> None:
    for position, (digest, size) in enumerate(manifest.chunks):
        if not _SHA256.fullmatch(digest) or not 0 < size <= CHUNK_BYTES:
            raise InvalidInputError.of(
                f"chunks.{position}",
                f"{quoted(digest)} of {size} bytes is no chunk",
                f"give a SHA-256 in hex and 1 to {CHUNK_BYTES} bytes",
            )
    total = sum(size for _, size in manifest.chunks)
    if total != manifest.size:
        raise InvalidInputError.of(
            "chunks",
            f"have {total} bytes, and the files {manifest.size}",
            "cut all of the files into chunks",
        )


def path_fault(path: str) -> str:
    """Why no file of a dataset can have this path; empty if one can."""
    if not is_text(path) or not path.isprintable():
        return "holds characters that cannot be printed"
    if path.startswith("/"):
        return "is absolute"
    parts = path.split("/")
    if ".." in parts or "." in parts or "" in parts:
        return "has a part that leads elsewhere"
    if (
        len(path.encode()) > _MAX_PATH
        or max(len(p.encode()) for p in parts) > _MAX_PART
    ):
        return "is too long"
    return ""


def folders_above(path: str) -> Iterator[str]:
    """The folders that a file lies in, the innermost first."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def chunk_sizes(files: Iterable[tuple[str, int]]) -> Iterator[int]:
    """Where the stream of `files` (path and size, in their order) is cut: the sizes of
    its chunks.
    """
    held = 0
    for path, size in files:
        is_large = size >= _LARGE_BYTES
        if held and (is_large or held + size > CHUNK_BYTES):
            yield held
            held = 0
        held += size
        while held > CHUNK_BYTES:
            yield CHUNK_BYTES
            held -= CHUNK_BYTES
        if held and (is_large or _cuts(path)):
            yield held
            held = 0
    if held:
        yield held


def _cuts(path: str) -> bool:
    return hashlib.sha256(path.encode()).digest()[0] % _CUT_ONE_IN == 0
