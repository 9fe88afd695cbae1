"""The code that jobs were submitted with: trees of files, each content once under its
hash. A tree is a document that names its files; its own hash is what a spec has.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable

import msgspec

from gpuyard.domain.contents import (
    LATELY_S,
    ContentKind,
    ContentMissingError,
    Stores,
)
from gpuyard.storage.code_tree import CodeTree
from gpuyard.storage.contents import read_whole


class CodeMissingError(FileNotFoundError):
    """There is no code with this digest, or its document is damaged."""


class CodeStore:
    """The trees and their files. The server writes; the agent reads."""

    def __init__(self, stores: Stores, clock: Callable[[], float] = time.time) -> None:
        self._trees = stores(ContentKind.TREE)
        self._files = stores(ContentKind.FILE)
        self._clock = clock

    def keep_files(self, digests: Collection[str]) -> set[str]:
        """Those of these files that are stored. None of them is removed for a day."""
        return self._files.keep(digests)

    def put_files(self, contents: Iterable[bytes]) -> list[str]:
        """Store the contents of files, unless they are there; returns their SHA-256.
        None of them is removed for a day.
        """
        return self._files.put(contents)

    def file(self, sha256: str) -> bytes:
        """The content of a file; CodeMissingError."""
        try:
            return read_whole(self._files, sha256)
        except ContentMissingError as error:
            raise CodeMissingError(f"the file {sha256} is not stored") from error

    def put(self, tree: CodeTree) -> str:
        """Store a tree whose files were stored just now, unless it is there; its
        digest.
        """
        (digest,) = self._trees.put([msgspec.json.encode(tree)])
        return digest

    def get(self, digest: str) -> CodeTree:
        """The tree; CodeMissingError."""
        try:
            encoded = read_whole(self._trees, digest)
            return msgspec.json.decode(encoded, type=CodeTree)
        except (ContentMissingError, ValueError) as error:
            raise CodeMissingError(
                f"the code {digest[:19]} that it was submitted with is no longer"
                " stored; `gpuyard resume` takes the code of now"
            ) from error

    def not_stored_lately(self) -> set[str]:
        """The digests of trees that no submission has stored lately: jobs may still
        need them.
        """
        return self._trees.stored_before(self._clock() - LATELY_S)

    def remove(self, digests: Collection[str]) -> None:
        """Remove these trees, unless they were stored again lately, and the files that
        no other tree has.
        """
        limit = self._clock() - LATELY_S
        self._trees.remove(digests, limit)
        needed: set[str] = set()
        for digest in self._trees.stored_before(math.inf):
            try:
                needed.update(entry.sha256 for entry in self.get(digest).entries)
            except CodeMissingError:  # damaged: nobody can use it
                self._trees.remove([digest], math.inf)
        # A tree that is stored after this look was made of files that are younger.
        self._files.remove(self._files.stored_before(limit) - needed, limit)
