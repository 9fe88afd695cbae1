"""What is in a working directory: every file, link and directory that a snapshot of it holds."""

import hashlib
import os
import stat
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.units import format_gb
from gpuyard.storage.ignoring import Rules, rules_above

_NEVER = {".git", "__pycache__"}
_VENV = "pyvenv.cfg"
_SHOWN = 3
_GB = 1 << 30


@dataclass(frozen=True, slots=True)
class Entry:
    """One path, relative and with slashes; `kind` is tar's type, `look` what changes when a file's content does."""

    path: str
    kind: bytes
    size: int = 0
    executable: bool = False
    link: str = ""
    look: tuple[int, ...] = ()


@dataclass(slots=True)
class Listing:
    """The entries below `root`, sorted by path, and what cannot be taken along with the reason."""

    root: Path
    entries: list[Entry] = field(default_factory=list[Entry])
    left_out: dict[str, str] = field(default_factory=dict[str, str])
    changed_ns: int = 0

    @classmethod
    def of(cls, root: Path) -> "Listing":
        """List `root`, a resolved path; InvalidInputError names what cannot be read."""
        listing = cls(root)
        try:
            rules, prefix = rules_above(root)
        except OSError as error:
            raise unreadable(str(error.filename), error) from error
        pending = [("", rules)]
        while pending:
            base, rules = pending.pop()
            pending += listing._enter(base, rules, prefix)
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
            digest.update(repr((entry.path, entry.kind, entry.executable, entry.link, entry.look)).encode())
        return digest.digest()

    def check_size(self, most: int) -> None:
        """InvalidInputError when the files hold more than `most` bytes; it names the largest."""
        total = sum(entry.size for entry in self.entries)
        if total <= most:
            return
        largest = ", ".join(f"{path!r} ({_shown(size)})" for path, size in self._largest())
        raise InvalidInputError.of(
            "workdir",
            f"{str(self.root)!r} holds {_shown(total)}, and a snapshot at most {_shown(most)};"
            f" the largest are {largest}",
            "leave out what the job does not need: .gpuyardignore is written like .gitignore",
        )

    def _enter(self, base: str, rules: Rules, prefix: str) -> list[tuple[str, Rules]]:
        """List one directory, `base` with a slash at its end or empty; return those in it."""
        place = self.root / base
        try:
            with os.scandir(place) as scan:
                found = list(scan)
            rules = rules.entering(place, prefix + base)
        except FileNotFoundError:
            return []  # it has just been removed
        except OSError as error:
            raise unreadable(str(error.filename), error) from error
        if base and any(item.name == _VENV for item in found):
            return []
        if base:
            self.entries.append(Entry(base.rstrip("/"), tarfile.DIRTYPE, executable=True))
        directories: list[tuple[str, Rules]] = []
        for item in found:
            path, directory = base + item.name, item.is_dir(follow_symlinks=False)
            if item.name in _NEVER or rules.leave_out(prefix + path, directory=directory):
                continue
            if directory:
                directories.append((f"{path}/", rules))
            else:
                self._add(path, item)
        return directories

    def _add(self, path: str, item: os.DirEntry[str]) -> None:
        try:
            status = item.stat(follow_symlinks=False)
            link = os.readlink(item) if stat.S_ISLNK(status.st_mode) else ""  # noqa: PTH115  (as text, as it is)
        except FileNotFoundError:
            return  # it has just been removed
        if link:
            self._add_link(path, link)
        elif stat.S_ISREG(status.st_mode):
            executable = bool(status.st_mode & stat.S_IXUSR)
            self.entries.append(Entry(path, tarfile.REGTYPE, status.st_size, executable, look=look(status)))
            self.changed_ns = max(self.changed_ns, status.st_mtime_ns, status.st_ctime_ns)
        else:
            self.left_out[path] = f"it is a {_KINDS.get(stat.S_IFMT(status.st_mode), 'device')}"

    def _add_link(self, path: str, link: str) -> None:
        """A link is kept if it points inside; one that names the way over the outside is made relative."""
        place = self.root / path
        real = Path(os.path.realpath(place))
        if not real.is_relative_to(self.root):
            self.left_out[path] = f"it is a link to {str(real)!r}, outside of the directory"
            return
        lexical = os.path.normpath(os.path.join(os.path.dirname(path), link))  # noqa: PTH118, PTH120
        if os.path.isabs(link) or lexical.split("/")[0] == "..":  # noqa: PTH117
            link = os.path.relpath(real, os.path.realpath(place.parent))
        self.entries.append(Entry(path, tarfile.SYMTYPE, link=link))

    def _largest(self) -> list[tuple[str, int]]:
        """The largest paths and their bytes; a directory stands for what is in it, unless most of that is one path."""
        sizes: dict[str, int] = {}
        children: dict[str, list[str]] = {}
        for entry in self.entries:
            parent = entry.path.rpartition("/")[0]
            children.setdefault(parent, []).append(entry.path)
            above = entry.path
            while above:
                sizes[above] = sizes.get(above, 0) + entry.size
                above = above.rpartition("/")[0]
        shown = children.get("", [])
        while split := next((path for path in shown if _is_mostly_one(path, sizes, children)), None):
            shown = [path for path in shown if path != split] + children[split]
        shown.sort(key=lambda path: -sizes[path])
        return [(f"{path}/" if path in children else path, sizes[path]) for path in shown[:_SHOWN]]


def look(status: os.stat_result) -> tuple[int, ...]:
    """What changes when a file's content does: the time of its content can be set back, that of its change cannot."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def unreadable(path: str, error: OSError) -> InvalidInputError:
    """The error for what is there and cannot be read."""
    return InvalidInputError.of(
        "workdir",
        f"{path!r} cannot be read: {error.strerror or error}",
        "make it readable, or name it in .gpuyardignore",
    )


_KINDS = {stat.S_IFSOCK: "socket", stat.S_IFIFO: "named pipe"}


def _is_mostly_one(path: str, sizes: dict[str, int], children: dict[str, list[str]]) -> bool:
    return any(2 * sizes[child] > sizes[path] for child in children.get(path, ()))


def _shown(size: int) -> str:
    return format_gb(size / _GB)
