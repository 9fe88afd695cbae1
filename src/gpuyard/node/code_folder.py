"""The folder in which an attempt finds the code that it was submitted with, if that of
its working folder has changed since.
"""

import os
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from gpuyard.domain.contents import ContentKind
from gpuyard.node.launcher import ProcessIdentity
from gpuyard.node.separation import make_owned
from gpuyard.storage import account_work
from gpuyard.storage.archive import beside
from gpuyard.storage.code_building import CodeBuilder
from gpuyard.storage.code_folders import folder_of, note_changes
from gpuyard.storage.code_snapshots import CodeReader
from gpuyard.storage.code_store import CodeMissingError, CodeStore
from gpuyard.storage.code_tree import CodeTree
from gpuyard.storage.contents import folder_stores, stores_of_node
from gpuyard.storage.listing import SETTLED_NS, look
from gpuyard.storage.untrusted import remove_tree

_UNFINISHED = "code.new"
_ABSENT = "absent"
_MOST_REMEMBERED = 1000
_Looks = tuple[tuple[int, ...], ...]


class CodeFolders:
    """Makes the folders; `store` has the code. `is_own(digest)`: whether a server of
    this home has stored that code, so that it knows the accounts of this host.
    """

    def __init__(
        self, store: CodeStore, is_own: Callable[[str], bool] = lambda _: True
    ) -> None:
        self._store = store
        self._is_own = is_own
        self._reader = CodeReader(store)
        # How the files of a folder looked when an account found none of them changed.
        self._unchanged: dict[tuple[int, str, Path], _Looks] = {}

    def files_needed(self, digest: str, live: Path | None) -> list[str]:
        """The contents that `prepare` needs for the folder `live`; without that, those
        of all files. CodeMissingError.
        """
        tree = self._store.get(digest)
        if live and not (live.is_dir() and self._reader.changes(tree, live)):
            return []
        return [entry.sha256 for entry in tree.entries if entry.sha256]

    def prepare(
        self,
        digest: str,
        live: Path,
        private: Path,
        identity: ProcessIdentity | None = None,
        *,
        always: bool = False,
        is_elsewhere: bool = False,
    ) -> Path:
        """Where an attempt finds the code `digest`: in the folder `live`, or, if the
        code there has changed or `always`, in a new one. `is_elsewhere`: `live` is on
        another machine, and what has this name here is something else.

        `identity`: what the attempt's process becomes, if that is not the agent's user;
        then all that touches `live` is done as its account, and the new folder is its
        own.
        CodeMissingError, OSError.
        """
        target = folder_of(private)
        if target.is_dir():
            return target  # an earlier agent made it
        if is_elsewhere:
            live = private / _ABSENT
        tree = self._store.get(digest)
        name = identity.account.name if identity else ""
        # Elsewhere jobs may have other accounts; the server has checked it.
        if self._is_own(digest) and tree.account != name:
            raise CodeMissingError(
                f"the code {digest[:19]} was stored for jobs of another account;"
                " `gpuyard resume` takes the code of now"
            )
        if identity:
            return self._prepare_as(
                identity,
                digest,
                tree,
                live,
                private,
                always=always,
                is_elsewhere=is_elsewhere,
            )
        is_here = live.is_dir()
        changed = self._reader.changes(tree, live) if is_here else []
        if not (changed or always) or not (is_here or is_elsewhere):
            return live
        with beside(target) as fresh:
            CodeBuilder(tree, self._store.file, live, fresh).build()
            note_changes(private, changed)
            fresh.rename(target)
        return target

    def _prepare_as(
        self,
        identity: ProcessIdentity,
        digest: str,
        tree: CodeTree,
        live: Path,
        private: Path,
        *,
        always: bool,
        is_elsewhere: bool,
    ) -> Path:
        """As `prepare`, for a job of an account. Root looks at the user's files, so
        that not every job needs a process of its own, and opens none of them.
        """
        account = identity.account
        key = (account.uid, digest, live)
        looks = _looks(tree, live)
        if looks and self._unchanged.get(key) == looks and not always:
            return live
        changed = account_work.changes(account, tree, live)
        if changed == [] and looks:
            self._remember(key, looks)
        if changed is None and is_elsewhere:
            changed = []
        if changed is None or not (changed or always):
            return live
        # Only root makes entries in `private`: what is in it is no link.
        fresh = private / _UNFINISHED
        remove_tree(fresh)
        try:
            make_owned(fresh, account)
            account_work.build(account, identity.umask, tree, self._store, live, fresh)
            note_changes(private, changed)
            fresh.rename(folder_of(private))
        finally:
            remove_tree(fresh)
        return folder_of(private)

    def _remember(self, key: tuple[int, str, Path], looks: _Looks) -> None:
        if len(self._unchanged) >= _MOST_REMEMBERED:
            self._unchanged.clear()
        self._unchanged[key] = looks


def _looks(tree: CodeTree, live: Path) -> _Looks | None:
    """How the files of `tree` look in the folder `live`; None if one is missing, or has
    changed just now: then it may change again and look the same.
    """
    settled_ns = time.time_ns() - SETTLED_NS
    looks: list[tuple[int, ...]] = []
    for entry in tree.entries:
        if entry.link:
            return None  # what it means depends on more than itself
        try:
            status = os.lstat(f"{live}/{entry.path}")
        except OSError:
            return None
        if max(status.st_mtime_ns, status.st_ctime_ns) > settled_ns:
            return None
        looks.append((*look(status), status.st_mode))
    return tuple(looks)


@lru_cache(maxsize=4)
def code_folders(home: Path) -> CodeFolders:
    """Those of the agent of a home; it remembers which files it has read."""
    own_trees = folder_stores(home)(ContentKind.TREE)
    return CodeFolders(CodeStore(stores_of_node(home)), own_trees.has)
