"""The code that jobs were submitted with: trees of files, each content once under its
hash. A tree is a document that names its files; its own hash is what a spec has.
"""

import io
import os
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from gpuyard.storage.blobs import BlobStore
from gpuyard.storage.code_tree import CodeTree, sha256_of

# A job may be submitted for so long after its code was stored.
_LATELY_S = 86400.0


class CodeMissingError(FileNotFoundError):
    """There is no code with this digest, or its document is damaged."""


class CodeStore:
    """The trees and their files in `folder`. The server writes; the agent reads.

    `lock` is held while files of a tree are stored, so that none is removed meanwhile.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.lock = threading.Lock()
        self._trees = BlobStore(folder / "trees")
        self._files = BlobStore(folder / "files")
        self._clock = clock

    def put_file(self, content: bytes) -> str:
        """Store the content of a file, unless it is there; returns its SHA-256."""
        digest = sha256_of(content)
        if not self._files.has(digest):
            self._files.put(io.BytesIO(content))
        return digest

    def has_file(self, sha256: str) -> bool:
        """Whether this content is stored."""
        return self._files.has(sha256)

    def file(self, sha256: str) -> bytes:
        """The content of a file; CodeMissingError."""
        try:
            return self._files.path(sha256).read_bytes()
        except FileNotFoundError as error:
            raise CodeMissingError(f"the file {sha256} is not stored") from error

    def put(self, tree: CodeTree) -> str:
        """Store a tree whose files are stored, unless it is there; its digest."""
        encoded = msgspec.json.encode(tree)
        digest = sha256_of(encoded)
        try:
            path = self._trees.path(digest)
            if path.stat().st_size != len(encoded):
                path.unlink()  # damaged
            os.utime(path)
        except FileNotFoundError:
            self._trees.put(io.BytesIO(encoded))
        return digest

    def get(self, digest: str) -> CodeTree:
        """The tree; CodeMissingError."""
        try:
            encoded = self._trees.path(digest).read_bytes()
            return msgspec.json.decode(encoded, type=CodeTree)
        except (FileNotFoundError, ValueError) as error:
            raise CodeMissingError(
                f"the code {digest[:19]} that it was submitted with is no longer"
                " stored; `gpuyard resume` takes the code of now"
            ) from error

    def not_stored_lately(self) -> set[str]:
        """The digests of trees that no submission has stored lately: jobs may still
        need them.
        """
        return _older(self._trees, self._clock() - _LATELY_S)

    def remove(self, digests: Collection[str]) -> None:
        """Remove these trees, and the files that no other tree has."""
        with self.lock:
            # One that was stored again since is somebody's.
            for digest in self.not_stored_lately().intersection(digests):
                self._trees.delete(digest)
            needed: set[str] = set()
            for digest in _older(self._trees, float("inf")):
                try:
                    needed.update(entry.sha256 for entry in self.get(digest).entries)
                except CodeMissingError:  # damaged: nobody can use it
                    self._trees.delete(digest)
            for sha256 in _older(self._files, float("inf")) - needed:
                self._files.delete(sha256)


def _older(blobs: BlobStore, limit: float) -> set[str]:
    """Those whose files were last changed before the time `limit`."""
    return {
        path.parent.name + path.name
        for path in blobs.root.glob("??/*")
        if path.stat().st_mtime < limit
    }
