"""Workspaces in a bucket: each has a copy on this host, where its jobs work.

Before a job, what is new in the bucket comes here (`pull`); after it, what is new here
goes there (`push`). If a file has changed on both sides, the newer one stays. A note
beside the copy says what both sides last had in common: so a file that is missing on
one side was removed there.

Jobs write here, so no link is followed, and only regular files are sent.
"""

import json
import os
import secrets
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import structlog

from gpuyard.domain.workspaces import workspace_names
from gpuyard.storage.bucket import Bucket
from gpuyard.storage.store import BucketError
from gpuyard.storage.streams import CHUNK
from gpuyard.storage.untrusted import (
    folder_beneath,
    new_file_in,
    open_beneath,
    walk,
    write_whole,
)
from gpuyard.storage.workspaces import Workspace

if TYPE_CHECKING:
    from obstore import ObjectMeta

_NOTE = ".bucket.json"
# What is not complete yet; also that of a server that was killed.
_FRESH = ".gpuyard-"
_PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 4
_FILES_AT_ONCE = 8
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Common:
    """A file that both sides have: size in bytes and time of change in ns here, and the
    version in the bucket.
    """

    size: int
    changed_ns: int
    etag: str

    def is_here(self, status: os.stat_result | None) -> bool:
        """Whether the file here is unchanged."""
        return (
            status is not None
            and (status.st_size, status.st_mtime_ns) == astuple(self)[:2]
        )


class WorkspaceBucket(Bucket):
    """The workspaces in the bucket and under the prefix of `url`, as
    `PROJECT/NAME/path`; their copies are below `root`. All methods block on both, and
    raise BucketError.
    """

    def __init__(self, url: str, options: Mapping[str, str], root: Path) -> None:
        super().__init__(url, options, setting="workspaces")
        self._root = root
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def listing(self) -> list[Workspace]:
        """All workspaces of the bucket, by project and name."""
        found: defaultdict[str, list[ObjectMeta]] = defaultdict(list)
        with self._explained():
            for page in self._objects.list():  # pyright: ignore[reportUnknownMemberType]
                for item in page:
                    parts = item["path"].split("/", 2)
                    if len(parts) == 3:
                        found["/".join(parts[:2])].append(item)
        return [self._workspace(key, items) for key, items in sorted(found.items())]

    def _workspace(self, key: str, items: list["ObjectMeta"]) -> Workspace:
        project, name = workspace_names(key)
        changed_at = max(item["last_modified"].timestamp() for item in items)
        size = sum(item["size"] for item in items)
        return Workspace(project, name, self._root / key, len(items), size, changed_at)

    def pull(self, key: str) -> None:
        """Bring what is new in the bucket here."""
        with self._locks[key], self._common(key) as common:
            theirs = self._theirs(key)
            here = self._here(key)
            if here is None or not theirs:
                # A whole side is gone: nobody has removed each of its files.
                common.clear()
                here = here or {}
            for path in sorted(common.keys() - theirs.keys()):
                if common.pop(path).is_here(here.get(path)):
                    self._remove_here(key, path)
            wanted = [
                path
                for path, item in theirs.items()
                if _is_wanted(item, here.get(path), common.get(path))
            ]
            self._each(wanted, lambda path: self._fetch(key, path), common)

    def push(self, key: str) -> None:
        """Send what is new here to the bucket."""
        with self._locks[key], self._common(key) as common:
            here = self._here(key)
            if here is None:
                return
            theirs = self._theirs(key)
            if not theirs:
                common.clear()
            changed = [
                path
                for path, status in here.items()
                if _is_to_send(status, theirs.get(path), common.get(path))
            ]
            self._each(changed, lambda path: self._send(key, path), common)
            for path in common.keys() - here.keys():
                item = theirs.get(path)
                if item and item["e_tag"] == common.pop(path).etag:
                    self._delete(f"{key}/{path}")

    def remove(self, key: str) -> None:
        """Remove all of a workspace from the bucket."""
        with self._locks[key]:
            self._note(key).unlink(missing_ok=True)
            self._each(self._theirs(key), lambda path: self._delete(f"{key}/{path}"))

    # --- the bucket ---

    def _theirs(self, key: str) -> dict[str, "ObjectMeta"]:
        """What the bucket has, by its path in the workspace."""
        prefix = f"{key}/"
        with self._explained():
            pages = self._objects.list(key)  # pyright: ignore[reportUnknownMemberType]
            return {
                item["path"].removeprefix(prefix): item
                for page in pages
                for item in page
                if item["path"].startswith(prefix)
            }

    def _delete(self, name: str) -> None:
        with self._explained(), suppress(FileNotFoundError):
            self._objects.delete(name)

    def _send(self, key: str, path: str) -> _Common | None:
        try:
            file = open_beneath(self._root, f"{key}/{path}")
        except OSError:
            return None  # it is gone, or a link now
        with file, self._explained():
            status = os.fstat(file.fileno())
            sent = self._objects.put(
                f"{key}/{path}",
                file,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )
        return _Common(status.st_size, status.st_mtime_ns, sent["e_tag"] or "")

    def _fetch(self, key: str, path: str) -> _Common | None:
        *folders, name = PurePosixPath(key, path).parts
        with self._explained():
            try:
                found = self._objects.get(f"{key}/{path}")
            except FileNotFoundError:
                return None  # it was just removed
        stream = found.stream(min_chunk_size=CHUNK)
        changed_at = found.meta["last_modified"].timestamp()
        fresh = f"{_FRESH}{secrets.token_hex(8)}"
        with folder_beneath(self._root, folders, make=0o777) as folder:
            try:
                with new_file_in(folder, fresh, 0o666) as file, self._explained():
                    for part in stream:
                        file.write(part)
                os.utime(fresh, (changed_at, changed_at), dir_fd=folder)
                os.rename(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                with suppress(OSError):
                    os.unlink(fresh, dir_fd=folder)
                raise
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        return _Common(status.st_size, status.st_mtime_ns, found.meta["e_tag"] or "")

    def _each(
        self,
        paths: Iterable[str],
        work: Callable[[str], _Common | None],
        common: dict[str, _Common] | None = None,
    ) -> None:
        """Do it for all of these, several at a time, and note what is then common. What
        cannot be had here is left out; the first error of the bucket ends it.
        """

        def one(path: str) -> None:
            try:
                done = work(path)
            except BucketError:
                raise
            except OSError as error:
                log.warning("a file is left out", path=path, error=str(error))
                return
            if common is not None and done is not None:
                common[path] = done

        with ThreadPoolExecutor(_FILES_AT_ONCE, "workspace") as pool:
            for _ in pool.map(one, paths):
                pass

    # --- this host ---

    def _here(self, key: str) -> dict[str, os.stat_result] | None:
        """The regular files of the copy, by their path; None if there is no such folder
        or not all of it can be read.
        """
        try:
            with folder_beneath(self._root, key.split("/")) as folder:
                return {
                    entry.path: entry.status
                    for entry in walk(folder)
                    if entry.is_file and _has_plain_name(entry.path)
                }
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("a workspace cannot be read", key=key, error=str(error))
            return None

    def _remove_here(self, key: str, path: str) -> None:
        *folders, name = PurePosixPath(key, path).parts
        with suppress(OSError), folder_beneath(self._root, folders) as folder:
            os.unlink(name, dir_fd=folder)

    def _note(self, key: str) -> Path:
        workspace = self._root / key
        return workspace.with_name(f".{workspace.name}{_NOTE}")

    @contextmanager
    def _common(self, key: str) -> Generator[dict[str, _Common]]:
        """What both sides have in common; changes are noted, also after an error."""
        before = self._read_note(key)
        common = dict(before)
        try:
            yield common
        finally:
            if common != before:
                files = {path: astuple(file) for path, file in common.items()}
                note = {"bucket": self.name, "files": files}
                write_whole(self._note(key), json.dumps(note).encode())

    def _read_note(self, key: str) -> dict[str, _Common]:
        try:
            note: Any = json.loads(self._note(key).read_bytes())
            files: dict[str, Any] = note["files"] if note["bucket"] == self.name else {}
            return {path: _Common(*known) for path, known in files.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}


def _has_plain_name(path: str) -> bool:
    """Whether both sides can have a file of this name, and it is complete."""
    is_fresh = path.rpartition("/")[2].startswith(_FRESH)
    return path.isprintable() and not is_fresh


def _is_wanted(
    item: "ObjectMeta", here: os.stat_result | None, common: _Common | None
) -> bool:
    """Whether a file of the bucket is to come here."""
    name = PurePosixPath(item["path"])
    if ".." in name.parts or not _has_plain_name(item["path"]):
        return False
    if common and common.etag == item["e_tag"]:
        return False  # it is here, or was removed here
    if here is None or (common and common.is_here(here)):
        return True
    return item["last_modified"].timestamp() > here.st_mtime


def _is_to_send(
    here: os.stat_result, item: "ObjectMeta | None", common: _Common | None
) -> bool:
    """Whether a file that is here is to go to the bucket."""
    is_known = common is not None and common.is_here(here)
    if item is None:
        return not is_known  # else it was removed there
    if common and common.etag == item["e_tag"]:
        return not is_known
    return not is_known and here.st_mtime >= item["last_modified"].timestamp()
