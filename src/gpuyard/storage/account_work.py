"""Work on the folders of a user, done as that user, by a process of its own
(`account_process.py`).

Server and agent are root where jobs have accounts. Root must read nothing for a user
that the user may not read, and follow no link that the user has made.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path, PurePosixPath

import msgspec

from gpuyard.config.accounts import Account
from gpuyard.config.private_environment import public_environment
from gpuyard.domain.errors import InvalidInputError
from gpuyard.storage.account_process import (
    AccountWorkError,
    Build,
    Compare,
    FolderAnswer,
    FolderOrder,
    FolderRefused,
    ReadCode,
    Work,
)
from gpuyard.storage.code_snapshots import CodeLimits
from gpuyard.storage.code_store import CodeStore
from gpuyard.storage.code_tree import CodeTree

_PROGRAM = (sys.executable, "-P", "-m", "gpuyard.storage.account_process")
# Long enough for the largest folder on a slow disk. The user can stop the process, or
# let it read from a file system that never answers.
_TIMEOUT_S = 60.0


def take_code(
    store: CodeStore,
    account: Account,
    workdir: Path,
    limits: CodeLimits,
    apart_from: Path,
) -> str:
    """Store the code of `workdir`, as far as the account may read it; returns the
    digest of its tree, which is for jobs of this account only.

    InvalidInputError as for `CodeReader.take`; OSError.
    """
    work = ReadCode(str(workdir), limits.files, limits.bytes, str(apart_from))
    answer = _done(account, 0o077, work)
    if answer.tree is None:
        raise AccountWorkError("there is no tree in the answer")
    _check(answer.tree, set(store.put_files(answer.contents)))
    return store.put(msgspec.structs.replace(answer.tree, account=account.name))


def changes(account: Account, tree: CodeTree, workdir: Path) -> list[str] | None:
    """As `CodeReader.changes`; None if `workdir` is no folder that the account may
    enter. OSError.
    """
    return _done(account, 0o077, Compare(tree, str(workdir))).changed


def build(
    account: Account,
    umask: int,
    tree: CodeTree,
    store: CodeStore,
    workdir: Path,
    fresh: Path,
) -> None:
    """Fill `fresh`, a folder of the account's own, with the code of `tree` and links to
    what else is in `workdir`. CodeMissingError, OSError.
    """
    hashes = {entry.sha256 for entry in tree.entries if not entry.link}
    contents = {sha256: store.file(sha256) for sha256 in hashes}
    _done(account, umask, Build(tree, contents, str(workdir), str(fresh)))


def _check(tree: CodeTree, stored: set[str]) -> None:
    """AccountWorkError unless all files of the tree were sent with it, below its
    folder.
    """
    for entry in tree.entries:
        path = PurePosixPath(entry.path)
        is_below = path.parts and not path.is_absolute() and ".." not in path.parts
        if not is_below or (not entry.link and entry.sha256 not in stored):
            raise AccountWorkError(f"the tree names {entry.path!r}, which it has not")


def _done(account: Account, umask: int, work: Work) -> FolderAnswer:
    order = msgspec.msgpack.encode(FolderOrder(account, umask, work))
    process = subprocess.Popen(
        _PROGRAM,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env=public_environment(),
        start_new_session=True,
    )
    with process:
        try:
            output, problem = process.communicate(order, _TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise AccountWorkError(
                f"reading it as {account.name} took more than {_TIMEOUT_S:g} s"
            ) from None
    if process.returncode:
        lines = problem.decode(errors="replace").strip().splitlines()
        why = lines[-1] if lines else f"it ended with {process.returncode}"
        raise AccountWorkError(f"reading it as {account.name} failed: {why}")
    answer = msgspec.msgpack.decode(output, type=FolderAnswer | FolderRefused)
    if isinstance(answer, FolderAnswer):
        return answer
    if answer.field:
        raise InvalidInputError.of(answer.field, answer.fault, answer.remedy)
    raise AccountWorkError(answer.fault)
