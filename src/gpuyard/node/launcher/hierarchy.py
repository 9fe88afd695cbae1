"""The mounted trees of control groups, the places in them where this process may make
groups, and access to their files.

Attempts' groups are in a group named `gpuyard` under the agent's own, so that limits of
the agent apply to its jobs too. In version 2 a group with processes in it cannot pass
controllers on to groups below; there they are beside the agent's own group, if that
place is writable (under systemd: `Delegate=yes` with `DelegateSubgroup=`, or a user's
service).
"""

import errno
import functools
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpuyard.node.launcher import procfs

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
CONTROLLERS = frozenset({"memory", "cpu", "pids", "devices"})


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted tree of groups. `root`: the group in which attempts' groups are made.

    `controllers`: those of memory, cpu, pids and devices that work in it; in version 2
    there may be none, and devices are not among them.
    """

    version: int
    mount: Path
    root: Path
    controllers: frozenset[str]


@functools.cache
def hierarchies(root: Path | None = None) -> tuple[Hierarchy, ...]:
    """The trees in which this process may make groups; the best one to keep track of
    processes comes first. `root` as in `Cgroup.create`.

    Makes the group for the attempts' groups in each.
    """
    own = _names(os.getpid())
    found: list[Hierarchy] = []
    for version, controllers, mount, top in _mounts():
        group = _below(mount, top, own.get(next(iter(controllers), "")))
        if root is not None:
            candidates = [mount / str(root).lstrip("/")]
        elif group is None:
            continue
        elif version == 1 or group == mount:
            candidates = [group / "gpuyard"]
        else:
            candidates = [group / "gpuyard", group.parent / "gpuyard"]
        found += _usable(version, controllers, mount, candidates)
    # Version 2 kills a group in one step; in version 1, pids can at least stop its
    # forking.
    return tuple(
        sorted(found, key=lambda tree: (-tree.version, "pids" not in tree.controllers))
    )


def groups_of(pid: int) -> list[Path]:
    """The folders of the groups of a process, one for each mounted tree."""
    names = _names(pid)
    places = (
        _below(mount, top, names.get(next(iter(controllers), "")))
        for _, controllers, mount, top in _mounts()
    )
    return [place for place in places if place]


def tree(group: Path) -> Iterator[Path]:
    """The group and all groups below it, parents first; nothing if it does not
    exist.
    """
    return (Path(folder) for folder, _, _ in os.walk(group, onerror=_raise_unless_gone))


def make(group: Path) -> bool:
    """Make a group and those above it; False if that is not allowed.

    Others may neither make groups in it nor enter it, whatever the umask was.
    """
    try:
        group.mkdir(parents=True, exist_ok=True)
        mode = group.stat().st_mode
        if mode & _OTHERS_WRITE:
            group.chmod(mode & ~_OTHERS_WRITE)
    except OSError:
        return False
    return True


def remove(group: Path) -> bool:
    """Remove a group and those below it; False if processes are still in one, which
    then stays.
    """
    try:
        os.rmdir(group)  # noqa: PTH106
    except OSError:  # gone, or not empty
        for below in reversed(list(tree(group))):
            with suppress(OSError):
                below.rmdir()
        return not group.exists()
    return True


def remove_empty(is_left: Callable[[str], bool], root: Path | None = None) -> None:
    """Remove those groups beside the attempts' that hold no process and whose names
    `is_left` says nobody needs. `root` as in `Cgroup.create`.
    """
    for hierarchy in hierarchies(root):
        with suppress(OSError):
            for path in hierarchy.root.iterdir():
                if is_left(path.name):
                    remove(path)


def read(group: Path, name: str) -> list[str]:
    """The words in a group's file; none if the group or the file does not exist."""
    return procfs.read_file(f"{group}/{name}").decode().split()


def write(file: Path, text: str) -> None:
    """Write to a group's file. Raises OSError with the kernel's error."""
    fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def try_write(file: Path, text: str) -> bool:
    """Write to a group's file; False if the kernel refuses or the file does not
    exist.
    """
    try:
        write(file, text)
    except OSError:
        return False
    return True


def _usable(
    version: int, controllers: frozenset[str], mount: Path, candidates: list[Path]
) -> list[Hierarchy]:
    """The candidate in which most controllers work; none if no group can be made."""
    # Version 2 needs write access to the common ancestor of a process's old group and
    # its new one.
    writable = [
        root
        for root in candidates
        if make(root) and os.access(root.parent / "cgroup.procs", os.W_OK)
    ]
    found = [
        Hierarchy(version, mount, root, controllers or _hand_down(root))
        for root in writable
    ]
    found.sort(key=lambda tree: -len(tree.controllers))
    for unused in found[1:]:
        with suppress(OSError):  # it may hold attempts of an earlier agent
            unused.root.rmdir()
    return found[:1]


def _hand_down(root: Path) -> frozenset[str]:
    """Enable the controllers in version 2 for the groups in `root`; returns those that
    work.
    """
    for group in (root.parent, root):
        for controller in sorted(CONTROLLERS):
            try_write(group / "cgroup.subtree_control", f"+{controller}")
    return CONTROLLERS & frozenset(read(root, "cgroup.subtree_control"))


def _mounts() -> Iterator[tuple[int, frozenset[str], Path, str]]:
    """Each mounted tree: its version, its controllers among ours, its folder, and the
    group at its top.
    """
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place, _, filesystem = line.partition(" - ")
        top, mount = place.split()[3:5]
        kind, _, options = filesystem.split(" ")
        controllers = CONTROLLERS & frozenset(options.split(","))
        if kind == "cgroup2":
            yield 2, frozenset(), Path(mount), top
        elif kind == "cgroup" and controllers:
            yield 1, controllers, Path(mount), top


def _names(pid: int) -> dict[str, str]:
    """A process's group by controller, in version 2 by ""."""
    groups: dict[str, str] = {}
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            groups.update(dict.fromkeys(controllers.split(","), group))
    return groups


def _below(mount: Path, top: str, group: str | None) -> Path | None:
    """The folder of a group if the tree is mounted from `top` on; None if the group is
    outside of that.
    """
    if group is None or ".." in group or not Path(group).is_relative_to(top):
        return None
    return mount / Path(group).relative_to(top)


def _raise_unless_gone(error: OSError) -> None:
    if error.errno not in (errno.ENOENT, errno.ENODEV):
        raise error
