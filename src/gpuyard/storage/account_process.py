"""A process that starts as root, becomes an account before it opens anything, and works
on the code of a folder.

`python -P -m gpuyard.storage.account_process` reads a FolderOrder from standard input
and writes the answer to standard output, both as msgpack. It is started for each order,
so it imports little.
"""

import codecs
import os
import resource
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from gpuyard.config.accounts import Account
from gpuyard.config.becoming import become
from gpuyard.domain.contents import sha256_of
from gpuyard.domain.errors import InvalidInputError
from gpuyard.storage.code_building import CodeBuilder
from gpuyard.storage.code_snapshots import CodeLimits, CodeReader
from gpuyard.storage.code_tree import CodeTree

_MOST_MEMORY_BYTES = 1 << 30
_MOST_CPU_S = 60


class AccountWorkError(OSError):
    """The process could not do its work; the message says why."""


class ReadCode(msgspec.Struct, frozen=True, tag=True):
    """Read the code of `workdir`, except what is in `apart_from`."""

    workdir: str
    files: int
    bytes: int
    apart_from: str


class Compare(msgspec.Struct, frozen=True, tag=True):
    """Find what has changed in `workdir` since `tree` was taken."""

    tree: CodeTree
    workdir: str


class Build(msgspec.Struct, frozen=True, tag=True):
    """Fill the folder `fresh` with `tree`, and links to what else is in `workdir`."""

    tree: CodeTree
    contents: dict[str, bytes]
    workdir: str
    fresh: str


Work = ReadCode | Compare | Build


class FolderOrder(msgspec.Struct, frozen=True):
    """What to do, and as whom."""

    account: Account
    umask: int
    work: Work


class FolderAnswer(msgspec.Struct, frozen=True, tag=True):
    """The answer: `tree` and `contents` of a ReadCode; `changed` of a Compare, None if
    the account may not enter the folder.
    """

    tree: CodeTree | None = None
    contents: list[bytes] = []
    changed: list[str] | None = None


class FolderRefused(msgspec.Struct, frozen=True, tag=True):
    """The answer when the folder is not as it should be; `field` is empty for an error
    of the system.
    """

    fault: str
    field: str = ""
    remedy: str = ""


class _Collected:
    """In place of a store: what is to be sent to the server, at most `most_bytes`."""

    def __init__(self, most_bytes: int) -> None:
        self.contents: dict[str, bytes] = {}
        self.tree: CodeTree | None = None
        self._left = most_bytes

    def keep_files(self, digests: Collection[str]) -> set[str]:
        """None: it has only what it is about to send."""
        return set()

    def put_files(self, contents: Iterable[bytes]) -> list[str]:
        """Their hashes; AccountWorkError if they are too much."""
        return [self._put_file(content) for content in contents]

    def _put_file(self, content: bytes) -> str:
        sha256 = sha256_of(content)
        if sha256 not in self.contents:
            self._left -= len(content)
            if self._left < 0:
                raise AccountWorkError("a file has grown while it was read")
            self.contents[sha256] = content
        return sha256

    def put(self, tree: CodeTree) -> str:
        """The tree is complete; its digest is the server's to make."""
        self.tree = tree
        return ""


def _do(work: Work) -> FolderAnswer:
    match work:
        case ReadCode():
            collected = _Collected(work.bytes)
            limits = CodeLimits(work.files, work.bytes)
            reader = CodeReader(collected)
            reader.take(Path(work.workdir), limits, Path(work.apart_from))
            return FolderAnswer(collected.tree, list(collected.contents.values()))
        case Compare():
            if not os.path.isdir(work.workdir):  # noqa: PTH112  (False without the right to look)
                return FolderAnswer()
            reader = CodeReader(_Collected(0))
            return FolderAnswer(changed=reader.changes(work.tree, Path(work.workdir)))
        case Build():
            live = Path(work.workdir)
            content = work.contents.__getitem__
            CodeBuilder(work.tree, content, live, Path(work.fresh)).build()
            return FolderAnswer()


def main() -> None:
    """Do the work on standard input."""
    order = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=FolderOrder)
    # What the user has put into a folder must not take the machine's memory or time.
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY_BYTES, _MOST_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_CPU_S, _MOST_CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The account may be unable to read the modules of this interpreter.
    codecs.lookup("utf-8-sig")
    become(order.account, order.umask)
    answer: FolderAnswer | FolderRefused
    try:
        answer = _do(order.work)
    except InvalidInputError as error:
        (fault,) = error.faults
        answer = FolderRefused(fault.fault, fault.field, fault.remedy)
    except MemoryError:
        answer = FolderRefused("reading it takes more than 1 GB of memory")
    except (OSError, ValueError) as error:
        answer = FolderRefused(str(error))
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer))


if __name__ == "__main__":
    main()
