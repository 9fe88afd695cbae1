"""The environments of packages on a node: each is built once, by the first job that
needs it, for all jobs of its user; those that were not used for the longest time make
room for others.

`build_packages.py` builds them, in place of the program of the job. What is here only
looks, and removes: nobody's code runs as the agent.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from gpuyard.config.accounts import ENTER, Account
from gpuyard.config.paths import Home
from gpuyard.config.settings import NodeSettings
from gpuyard.domain import wire
from gpuyard.domain.packages import PackageList
from gpuyard.domain.reasons import Reason
from gpuyard.node import build_packages
from gpuyard.node.launcher import LaunchError
from gpuyard.node.separation import hand_over, make_closed, make_owned
from gpuyard.storage.archive import beside
from gpuyard.storage.package_lists import PackagesMissingError, ReadPackages
from gpuyard.storage.untrusted import remove_tree

_BUILDER = Path(build_packages.__file__)
_COMPLETE = ".complete"
_LOCK = ".lock"
_CACHE = "cache"
_AGENT = "agent"
# Long paths would not fit into the first lines of programs.
_NAME_LENGTH = 20
# Of another environment; that of the packages comes first.
_DROPPED = ("PYTHONHOME", "CONDA_PREFIX", "CONDA_DEFAULT_ENV")
_SHOWN_LINES = 12
_SHOWN_CHARACTERS = 1500


@dataclass(frozen=True, slots=True)
class PackageEnvironment:
    """One of them. `folder` is where it is, or will be."""

    folder: Path

    @property
    def is_of_agent(self) -> bool:
        """Whether its jobs run as the agent does, and under no account."""
        return self.folder.parent.name == _AGENT

    @property
    def list_name(self) -> str:
        """The file in it that names what is installed, one package a line."""
        return build_packages.LOCKED_LIST

    @property
    def is_complete(self) -> bool:
        """Whether it is there."""
        return os.path.lexists(f"{self.folder}{_COMPLETE}")

    def set_variables(self, environment: dict[str, str]) -> None:
        """Let a program find this Python first."""
        for name in _DROPPED:
            environment.pop(name, None)
        path = environment.get("PATH", os.defpath)
        environment["VIRTUAL_ENV"] = str(self.folder)
        environment["PATH"] = f"{self.folder}/bin:{path}"

    def has_changed(self) -> bool:
        """Whether somebody has installed something since it was complete: a job that
        runs as root can.
        """
        complete = os.lstat(f"{self.folder}{_COMPLETE}").st_mtime_ns
        try:
            places = [self.folder / "bin", *self.folder.glob("lib/*/site-packages")]
            changed = [os.lstat(place).st_mtime_ns for place in places]
        except OSError:
            return True
        return max(changed) > complete


def add_project(environment: dict[str, str], workdir: Path) -> None:
    """Let a program import the modules of the project whose folder it has, if they are
    in its `src`: the project itself is not installed.
    """
    source = workdir / "src"
    if source.is_dir() and (workdir / "pyproject.toml").is_file():
        path = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{source}:{path}" if path else str(source)


class PackageEnvironments:
    """Those below `root`, of at most `limit` bytes together if that is possible.
    `read` gives the lists; `in_use()` has the digest of the list of each live attempt.
    All methods block.
    """

    def __init__(
        self,
        root: Path,
        limit: int,
        read: ReadPackages,
        in_use: Callable[[], Sequence[str]],
    ) -> None:
        self._root = root
        self._limit = limit
        self._read = read
        self._in_use = in_use

    def find(self, digest: str, uid: int | None) -> PackageEnvironment:
        """Where the environment for a list of packages is, or is to be built: one that
        was changed is left to the jobs that use it. `uid`: of the account of its jobs,
        if that is not the agent's.
        """
        number = 1
        while True:
            folder = self._root / _owner(uid) / f"{_short(digest)}.{number}"
            found = PackageEnvironment(folder)
            if not found.is_complete or not found.has_changed():
                return found
            number += 1

    def prepare(
        self, digest: str, account: Account | None, private: Path
    ) -> PackageEnvironment:
        """Have all that is needed to start a job with these packages: the environment,
        or what it is built from, below `private`, which is the attempt's own folder.

        LaunchError, for example if the list is no longer stored.
        """
        found = self.find(digest, account.uid if account else None)
        if found.is_complete:
            os.utime(found.folder, follow_symlinks=False)
            return found
        try:
            packages = self._read(digest)
        except PackagesMissingError as error:
            raise LaunchError(Reason.PACKAGES_FAILED, str(error)) from None
        if packages.kind not in packages.files:
            fault = f"the list of packages {digest[:19]} is damaged"
            raise LaunchError(Reason.PACKAGES_FAILED, fault)
        try:
            self._make_root(account)
            self.make_room(digest)
            _write_lists(packages, _lists(private), account)
        except OSError as error:
            message = f"its packages cannot be installed: {error}"
            raise LaunchError(Reason.SPAWN_FAILED, message) from None
        return found

    def command(
        self,
        found: PackageEnvironment,
        digest: str,
        private: Path,
        command: Sequence[str],
    ) -> Sequence[str]:
        """The command to start: one that builds the environment first, unless it is
        complete. LaunchError.
        """
        if found.is_complete:
            return command
        packages = self._read(digest)
        order = build_packages.BuildOrder(
            str(found.folder),
            str(_lists(private)),
            str(found.folder.parent / _CACHE),
            str(self._uv(found)),
            packages.kind,
            packages.source,
            packages.python,
        )
        text = json.dumps(order._asdict())
        return (*_builder(found), text, *command)

    def _uv(self, found: PackageEnvironment) -> Path:
        """The program that installs packages; accounts have a copy, because they may be
        unable to execute that of gpuyard. LaunchError.
        """
        own = _own_uv()
        if found.is_of_agent:
            return own
        status = own.stat()
        copy = self._root / f"uv-{status.st_size}-{status.st_mtime_ns}"
        if not copy.exists():
            try:
                with beside(copy) as fresh:
                    shutil.copyfile(own, fresh)
                    fresh.chmod(0o755)
                    fresh.rename(copy)
            except OSError as error:
                message = f"uv cannot be copied for its account: {error}"
                raise LaunchError(Reason.SPAWN_FAILED, message) from None
        return copy

    def make_room(self, digest: str) -> None:
        """Make room for an environment that is about to be built for a list.

        What killed builds have left goes. If the rest is more than the limit, first
        goes what uv has kept of what it has fetched, then the environments that were
        not used for the longest time.
        """
        needed = {_short(each) for each in (*self._in_use(), digest)}
        found = [it for it in self._places() if _list_of(it) not in needed]
        for place in found:
            if not PackageEnvironment(place).is_complete:
                _forget(place)
        if _bytes_below(self._root) <= self._limit:
            return
        if not self._is_another_building(digest):
            for owner in self._owners():
                remove_tree(owner / _CACHE)
        for place in sorted(found, key=_used_at):
            if _bytes_below(self._root) <= self._limit:
                return
            _forget(place)

    def _is_another_building(self, digest: str) -> bool:
        """Whether a job installs packages just now, besides one with this list."""
        needed = list(self._in_use())
        if digest in needed:
            needed.remove(digest)
        complete = {
            _list_of(place)
            for place in self._places()
            if PackageEnvironment(place).is_complete
        }
        return not complete.issuperset(_short(each) for each in needed)

    def _owners(self) -> list[Path]:
        if not self._root.is_dir():
            return []
        entries = os.scandir(self._root)
        return [Path(it.path) for it in entries if it.is_dir(follow_symlinks=False)]

    def _places(self) -> Iterator[Path]:
        """The folders of all environments."""
        for owner in self._owners():
            for entry in os.scandir(owner):
                is_folder = entry.is_dir(follow_symlinks=False)
                if is_folder and entry.name != _CACHE:
                    yield Path(entry.path)

    def _make_root(self, account: Account | None) -> None:
        folder = self._root / _owner(account.uid if account else None)
        if account:
            make_owned(folder, account)
        else:
            self._root.mkdir(mode=ENTER, parents=True, exist_ok=True)
            folder.mkdir(exist_ok=True)


def package_environments(
    home: Home,
    settings: NodeSettings,
    node: str,
    read: ReadPackages,
    in_use: Callable[[], Sequence[str]],
) -> PackageEnvironments:
    """Those of a node: in the home, or, where jobs have accounts, which may not enter
    it, in a folder that all may pass through.
    """
    root = home.node / "packages"
    if settings.has_accounts:
        root = settings.accounts_folder / f"{node}-packages"
    limit = int(settings.package_cache_gb * 1e9)
    return PackageEnvironments(root, limit, read, in_use)


def explained_by_packages(
    ended: wire.Ended,
    found: PackageEnvironment | None,
    tail: Callable[[int], tuple[int, bytes]],
) -> wire.Ended:
    """The report of an attempt with the reason that its packages could not be
    installed, if it ended before it had them. `tail` gives the last lines of its log.
    """
    is_failure = ended.exit_code and not (ended.reason or ended.stopped)
    if not is_failure or found is None or found.is_complete:
        return ended
    (_, lines) = tail(_SHOWN_LINES)
    message = lines.decode(errors="replace").strip()[-_SHOWN_CHARACTERS:]
    return replace(ended, reason=Reason.PACKAGES_FAILED, message=message)


def _owner(uid: int | None) -> str:
    return _AGENT if uid is None else f"uid-{uid}"


def _builder(found: PackageEnvironment) -> Sequence[str]:
    """How to start the builder. An account may be unable to read this file, and to
    execute this Python. LaunchError.
    """
    if found.is_of_agent:
        return (sys.executable, "-I", "-S", str(_BUILDER))
    python = shutil.which("python3", path=os.defpath)
    if python is None:
        fault = f"there is no python3 in {os.defpath} that accounts may execute"
        raise LaunchError(Reason.PACKAGES_FAILED, fault)
    return (python, "-I", "-S", "-c", _BUILDER.read_text())


def _short(digest: str) -> str:
    return digest[:_NAME_LENGTH]


def _list_of(place: Path) -> str:
    """The short digest of the list of packages of an environment."""
    return place.name.partition(".")[0]


def _lists(private: Path) -> Path:
    return private / "packages"


def _write_lists(packages: PackageList, folder: Path, account: Account | None) -> None:
    """Write the files that name the packages, for who builds from them."""
    remove_tree(folder)
    if account:
        make_closed(folder)
    else:
        folder.mkdir(parents=True)
    for path, text in packages.files.items():
        place = folder / path
        if not place.resolve().is_relative_to(folder.resolve()):
            raise LaunchError(Reason.PACKAGES_FAILED, f"{path} leads out of its folder")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    if account:
        hand_over(folder, account)


def _own_uv() -> Path:
    """The program that installs packages; LaunchError if it was not installed."""
    from uv import find_uv_bin  # imported late: few jobs name packages

    try:
        return Path(os.fsdecode(find_uv_bin()))
    except FileNotFoundError as error:
        raise LaunchError(Reason.PACKAGES_FAILED, f"there is no uv: {error}") from None


def _forget(place: Path) -> None:
    for name in (_COMPLETE, _LOCK):
        Path(f"{place}{name}").unlink(missing_ok=True)
    remove_tree(place)


def _used_at(place: Path) -> float:
    try:
        return os.lstat(place).st_mtime
    except OSError:
        return 0.0


def _bytes_below(root: Path) -> int:
    """What a folder takes of the disk; a file with several names counts once."""
    seen: Mapping[tuple[int, int], int] = {
        (status.st_dev, status.st_ino): status.st_blocks * 512
        for status in _files_below(root)
    }
    return sum(seen.values())


def _files_below(root: Path) -> Iterator[os.stat_result]:
    """What its jobs have nested too deeply for a path is left out: to follow it would
    take a descriptor for each level.
    """
    waiting = [str(root)]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                    continue
                with suppress(FileNotFoundError):
                    yield entry.stat(follow_symlinks=False)
