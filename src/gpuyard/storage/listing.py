"""Lists a working directory: every file, link and directory that a snapshot of it
holds.
"""

import hashlib
import os
import stat
import tarfile
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.units import format_gb
from gpuyard.storage.ignoring import Rules, rules_above
from gpuyard.storage.untrusted import UntrustedFileError, folder_beneath

_ALWAYS_IGNORED = {".git", "__pycache__"}
_VENV = "pyvenv.cfg"
_SHOWN = 3
_GB = 1 << 30
# What others need to read a folder.
_ENTER = stat.S_IROTH | stat.S_IXOTH
_NOT_PUBLIC = "not everybody on this host may read it"
SETTLED_NS = 2_000_000_000
"""How long ago a file must have changed so that it cannot change again and look the
same: one tick of the coarsest clock of a file system (FAT's).
"""


@dataclass(frozen=True, slots=True)
class ListingEntry:
    """One path, relative and with slashes. `kind` is tar's type; `look` changes when a
    file's content does.
    """

    path: str
    kind: bytes
    size: int = 0
    executable: bool = False
    link: str = ""
    look: tuple[int, ...] = ()


@dataclass(slots=True)
class Listing:
    """The entries below `root`, sorted by path, and the paths that cannot be stored
    with the reasons. `is_public`: what some users of this host may not read cannot be
    stored, either.
    """

    root: Path
    is_public: bool = False
    entries: list[ListingEntry] = field(default_factory=list[ListingEntry])
    left_out: dict[str, str] = field(default_factory=dict[str, str])
    changed_ns: int = 0

    @classmethod
    def of(
        cls, root: Path, *, most: int | None = None, is_public: bool = False
    ) -> "Listing":
        """List `root`, a resolved path; InvalidInputError names what cannot be read, or
        says that there are more than `most` paths.
        """
        listing = cls(root, is_public)
        try:
            rules, prefix = rules_above(root)
        except OSError as error:
            raise unreadable(str(error.filename), error) from error
        pending = [("", rules)]
        while pending:
            base, rules = pending.pop()
            pending += listing._enter(base, rules, prefix)
            if most is not None and len(listing.entries) > most:
                raise InvalidInputError.of(
                    "workdir",
                    f"{str(root)!r} holds more than {most:,} paths",
                    "leave out what the job does not need: .gpuyardignore is written"
                    " like .gitignore",
                )
        listing.entries.sort(key=lambda entry: entry.path)
        return listing

    @property
    def files(self) -> int:
        """How many files and links there are."""
        return sum(entry.kind != tarfile.DIRTYPE for entry in self.entries)

    def key(self) -> bytes:
        """A hash that differs when anything in the listing does."""
        digest = hashlib.sha256()
        for entry in self.entries:
            row = (entry.path, entry.kind, entry.executable, entry.link, entry.look)
            digest.update(repr(row).encode())
        return digest.digest()

    def check_size(self, most: int) -> None:
        """InvalidInputError, which names the largest paths, when the files hold more
        than `most` bytes.
        """
        total = sum(entry.size for entry in self.entries)
        if total <= most:
            return
        largest = ", ".join(
            f"{path!r} ({_shown(size)})" for path, size in self._largest()
        )
        raise InvalidInputError.of(
            "workdir",
            f"{str(self.root)!r} holds {_shown(total)}, and a snapshot at most"
            f" {_shown(most)}; the largest are {largest}",
            "leave out what the job does not need: .gpuyardignore is written like"
            " .gitignore",
        )

    def _enter(self, base: str, rules: Rules, prefix: str) -> list[tuple[str, Rules]]:
        """List one directory; `base` is empty or ends with a slash. Returns the
        directories in it.
        """
        try:
            # A job may work there too, and swap a directory for a link to another one.
            with folder_beneath(self.root, PurePath(base).parts) as place:
                return self._enter_opened(place, base, rules, prefix)
        except (FileNotFoundError, UntrustedFileError):
            return []  # it has just been removed or replaced
        except OSError as error:
            raise unreadable(str(self.root / base), error) from error

    def _enter_opened(
        self, place: int, base: str, rules: Rules, prefix: str
    ) -> list[tuple[str, Rules]]:
        if self.is_public and not _everybody_may(os.fstat(place), _ENTER):
            self.left_out[base.rstrip("/")] = _NOT_PUBLIC
            return []
        with os.scandir(place) as scan:
            found = list(scan)
        rules = rules.entering(Path(f"/proc/self/fd/{place}"), prefix + base)
        if base and any(item.name == _VENV for item in found):
            return []
        if base:
            self.entries.append(
                ListingEntry(base.rstrip("/"), tarfile.DIRTYPE, executable=True)
            )
        directories: list[tuple[str, Rules]] = []
        for item in found:
            path = base + item.name
            directory = item.is_dir(follow_symlinks=False)
            if item.name in _ALWAYS_IGNORED:
                continue
            if rules.leave_out(prefix + path, directory=directory):
                continue
            if directory:
                directories.append((f"{path}/", rules))
            else:
                self._add(path, item, place)
        return directories

    def _add(self, path: str, item: os.DirEntry[str], place: int) -> None:
        try:
            status = item.stat(follow_symlinks=False)
            is_link = stat.S_ISLNK(status.st_mode)
            link = os.readlink(item.name, dir_fd=place) if is_link else ""
        except FileNotFoundError:
            return  # it has just been removed
        if link:
            self._add_link(path, link)
        elif self.is_public and not _everybody_may(status, stat.S_IROTH):
            self.left_out[path] = _NOT_PUBLIC
        elif stat.S_ISREG(status.st_mode):
            executable = bool(status.st_mode & stat.S_IXUSR)
            size = status.st_size
            entry = ListingEntry(
                path, tarfile.REGTYPE, size, executable, look=look(status)
            )
            self.entries.append(entry)
            changed_ns = max(status.st_mtime_ns, status.st_ctime_ns)
            self.changed_ns = max(self.changed_ns, changed_ns)
        else:
            kind = _KINDS.get(stat.S_IFMT(status.st_mode), "device")
            self.left_out[path] = f"it is a {kind}"

    def _add_link(self, path: str, link: str) -> None:
        """Keep a link that points inside; make it relative if it is absolute or leads
        through the outside.
        """
        place = self.root / path
        real = Path(os.path.realpath(place))
        if not real.is_relative_to(self.root):
            fault = f"it is a link to {str(real)!r}, outside of the directory"
            self.left_out[path] = fault
            return
        lexical = os.path.normpath(os.path.join(os.path.dirname(path), link))  # noqa: PTH118, PTH120
        if os.path.isabs(link) or lexical.split("/")[0] == "..":  # noqa: PTH117
            link = os.path.relpath(real, os.path.realpath(place.parent))
        self.entries.append(ListingEntry(path, tarfile.SYMTYPE, link=link))

    def _largest(self) -> list[tuple[str, int]]:
        """The largest paths and their bytes. A directory stands for its content, unless
        one path is most of that.
        """
        sizes: dict[str, int] = {}
        children: dict[str, list[str]] = {}
        for entry in self.entries:
            parent = entry.path.rpartition("/")[0]
            children.setdefault(parent, []).append(entry.path)
            ancestor = entry.path
            while ancestor:
                sizes[ancestor] = sizes.get(ancestor, 0) + entry.size
                ancestor = ancestor.rpartition("/")[0]
        shown: list[str] = []
        pending = list(children.get("", []))
        while pending:
            path = pending.pop()
            if _is_mostly_one(path, sizes, children):
                pending += children[path]
            else:
                shown.append(path)
        shown.sort(key=lambda path: (-sizes[path], path))
        largest: list[tuple[str, int]] = []
        for path in shown[:_SHOWN]:
            name = f"{path}/" if path in children else path
            largest.append((name, sizes[path]))
        return largest


def checked_folder(workdir: Path, *, is_public: bool = False) -> Path:
    """The folder without links; InvalidInputError when it is none, or holds the home
    directory, or `is_public` and some users of this host may not read it.
    """
    root = workdir.resolve()
    if is_public:
        _check_public(root)
    if not root.is_dir():
        raise InvalidInputError.of(
            "workdir", f"{str(workdir)!r} is no directory", "name one that is there"
        )
    if Path.home().resolve().is_relative_to(root):
        raise InvalidInputError.of(
            "workdir",
            f"{str(root)!r} holds the home directory, and with it keys and much that no"
            " job needs",
            "run the job from the directory of its project",
        )
    return root


def _check_public(root: Path) -> None:
    """InvalidInputError unless all users of this host may read the folder. Nobody
    learns whether one exists that is closed to others.
    """
    try:
        above = (parent.stat() for parent in reversed(root.parents))
        is_open = all(_everybody_may(status, stat.S_IXOTH) for status in above)
        is_public = is_open and _everybody_may(root.stat(), _ENTER)
    except OSError:
        is_public = False
    if not is_public:
        raise InvalidInputError.of(
            "workdir",
            f"{str(root)!r} is no folder that everybody on the server's host may read,"
            " and jobs of users get copies of no others",
            "let everybody read it (chmod -R o+rX), or give the job a dataset"
            " (`gpuyard datasets add`)",
        )


def _everybody_may(status: os.stat_result, access: int) -> bool:
    return status.st_mode & access == access


def look(status: os.stat_result) -> tuple[int, ...]:
    """Values of which one changes when the file's content does: programs can set back
    the time of the content (mtime), but not that of the change (ctime).
    """
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def unreadable(path: str, error: OSError) -> InvalidInputError:
    """The error for a path that cannot be read."""
    return InvalidInputError.of(
        "workdir",
        f"{path!r} cannot be read: {error.strerror or error}",
        "make it readable, or name it in .gpuyardignore",
    )


_KINDS = {stat.S_IFSOCK: "socket", stat.S_IFIFO: "named pipe"}


def _is_mostly_one(
    path: str, sizes: dict[str, int], children: dict[str, list[str]]
) -> bool:
    return any(2 * sizes[child] > sizes[path] for child in children.get(path, ()))


def _shown(size: int) -> str:
    return format_gb(size / _GB)
