"""Becomes the init of one container: `python3 -I -S launcher.py SPEC STATUS_FD`. The
standard library only.

SPEC is a file of `marshal`: `told` (the file of its last words), `mounts` (pairs of host
path and path inside, and whether read-only), `command`, `environment`, `workdir`,
`hostname`, `beside_pause`, `user`, `group`, `volume_group`. To STATUS_FD goes `pid N`,
and what went wrong before the command ran.
This process stands outside, waits for the container's init, and ends as it did: 128 + N
for a signal N.

With `--beside PID` behind it, the command runs beside the container's init, which is
this PID, on the input and output of this process; `terminal` says that these are a
terminal.
"""

# It starts before each container; pathlib, json and signal would treble how long that
# takes.
# ruff: noqa: PTH103, PTH110, PTH112, PTH113, PTH115, PTH118, PTH120, PTH123, PTH208, PTH211

from __future__ import annotations

import _signal as signal
import ctypes
import fcntl
import marshal
import os
import sys
import termios

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NEWNS = 0x20000
_NEWUTS = 0x4000000
_NEWIPC = 0x8000000
_NEWPID = 0x20000000
_BIND = 4096
_REC = 16384
_PRIVATE = 1 << 18
_READ_ONLY = 1
_REMOUNT = 32
_PDEATHSIG = 1
_KEEP_CAPS = 8
_AMBIENT = 47
_AMBIENT_RAISE = 2
_DAC_READ_SEARCH = 2
_CAPABILITY_VERSION = 0x20080522
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "fuse")
_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _mount(source: str, target: str, flags: int, kind: str | None = None) -> None:
    _call(
        "mount",
        source.encode(),
        target.encode(),
        kind and kind.encode(),
        ctypes.c_ulong(flags),
        None,
    )


def _make(path: str, like: str) -> None:
    if os.path.isdir(like):
        os.makedirs(path, exist_ok=True)
    elif not os.path.lexists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))


def _opened(mounts: list[tuple[str, str, bool]], workdir: str) -> set[str]:
    """The folders of the host that must be private, as something is to be made in them
    that the host has not.
    """
    found = {"/"}
    for path in [inside for _, inside, _ in mounts] + [workdir]:
        while not os.path.exists(path):
            path = os.path.dirname(path)
            found.add(path)
    for path in [*found]:
        while path != "/":
            path = os.path.dirname(path)
            found.add(path)
    return {path for path in found if os.path.isdir(path)}


def _mirror(root: str, folders: set[str]) -> None:
    """The host's file system, with those folders made anew: what lies in them is the
    host's, they are not.
    """
    for folder in sorted(folders, key=len):
        for entry in os.scandir(folder):
            target = root + entry.path
            if entry.path in folders:
                os.makedirs(target, exist_ok=True)
            elif entry.is_symlink():
                os.symlink(os.readlink(entry.path), target)
            elif entry.path not in ("/proc", "/dev"):
                _make(target, entry.path)
                _mount(entry.path, target, _BIND | _REC)


def _devices(root: str) -> None:
    """A small /dev of its own, with the GPUs of the host where there are some."""
    names = [
        name
        for name in os.listdir("/dev")
        if name in _DEVICES or name.startswith("nvidia")
    ]
    for name in names:
        _make(f"{root}/dev/{name}", f"/dev/{name}")
        _mount(f"/dev/{name}", f"{root}/dev/{name}", _BIND | _REC)
    os.makedirs(f"{root}/dev/shm", exist_ok=True)
    _mount("shm", f"{root}/dev/shm", 0, "tmpfs")
    for name, target in (
        ("fd", "fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
    ):
        os.symlink(f"/proc/self/{target}", f"{root}/dev/{name}")


def _furnish(spec: dict[str, Any]) -> None:
    # No other folder of the host holds it, so none is mirrored into itself.
    root = "/proc"
    _mount("none", "/", _REC | _PRIVATE)
    # In memory, so that nobody has to remove what is made in it.
    _mount("root", root, 0, "tmpfs")
    os.makedirs(root + "/proc")
    os.makedirs(root + "/dev")
    _mirror(root, _opened(spec["mounts"], spec["workdir"]))
    _devices(root)
    told = root + "/dev/termination-log"
    _make(told, spec["told"])
    _mount(spec["told"], told, _BIND)
    _mount("proc", root + "/proc", 0, "proc")
    for source, inside, read_only in sorted(spec["mounts"], key=lambda each: each[1]):
        target = root + inside
        _make(target, source)
        _mount(source, target, _BIND | _REC)
        if read_only:
            _mount(source, target, _BIND | _REMOUNT | _READ_ONLY)
    os.chroot(root)
    os.makedirs(spec["workdir"], exist_ok=True)
    os.chdir(spec["workdir"])


def _become(spec: dict[str, Any]) -> None:
    """The container's init; does not return."""
    _libc.prctl(_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    _furnish(spec)
    name = spec["hostname"].encode()
    _call("sethostname", name, len(name))
    os.umask(0o022)
    command = spec["command"]
    environment = spec["environment"]
    program = _found(command[0], environment.get("PATH", ""))
    _be(spec)
    _libc.prctl(_PDEATHSIG, signal.SIGKILL)  # who becomes another user loses it
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execve(program, command, environment)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Capabilities(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def _be(spec: dict[str, Any]) -> None:
    """Become the user of the pod.

    The images of this cluster are the file system of the host, whose programs may be in
    a folder of root. So it may still read everything, but write only what is its own.
    """
    if not spec["user"]:
        return
    _call("prctl", _KEEP_CAPS, 1, 0, 0, 0)
    os.setgroups([] if spec["volume_group"] is None else [spec["volume_group"]])
    os.setresgid(*[spec["group"] or 0] * 3)
    os.setresuid(*[spec["user"]] * 3)
    low = _Capabilities(*[1 << _DAC_READ_SEARCH] * 3)
    both = (_Capabilities * 2)(low, _Capabilities(0, 0, 0))
    _call("capset", ctypes.byref(_Header(_CAPABILITY_VERSION, 0)), both)
    _call("prctl", _AMBIENT, _AMBIENT_RAISE, _DAC_READ_SEARCH, 0, 0)


def _found(word: str, path: str) -> str:
    """The program that a command means."""
    folders = [""] if "/" in word else path.split(os.pathsep)
    for folder in folders:
        program = os.path.join(folder, word)
        if os.path.isfile(program) and os.access(program, os.X_OK):
            return program
    raise OSError(_missing(word))


def _missing(word: str) -> str:
    if "/" not in word:
        return f'exec: "{word}": executable file not found in $PATH: unknown'
    if os.path.exists(word):
        return f'exec: "{word}": permission denied: unknown'
    return f'exec: "{word}": stat {word}: no such file or directory: unknown'


def _pause(status: int) -> int:
    """Process 1 of a pod whose containers share their processes: it reaps what is left
    to it.
    """
    pid = os.fork()
    if pid:
        return pid
    _libc.prctl(_PDEATHSIG, signal.SIGKILL)
    for stream in (0, 1, 2, status):
        os.close(stream)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        signal.pause()


def _enter(init: str) -> None:
    """Go into the namespaces and the file system of a process."""
    names = ("uts", "ipc", "pid", "mnt")
    spaces = [os.open(f"/proc/{init}/ns/{name}", os.O_RDONLY) for name in names]
    root = os.open(f"/proc/{init}/root", os.O_RDONLY)
    for space in spaces:
        _call("setns", space, 0)
    os.fchdir(root)
    os.chroot(".")


def _beside(spec: dict[str, Any]) -> None:
    """The command in a container that runs; does not return."""
    _libc.prctl(_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    if spec["terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(spec["workdir"])
    command = spec["command"]
    environment = spec["environment"]
    program = _found(command[0], environment.get("PATH", ""))
    _be(spec)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execve(program, command, environment)


def _run_beside(spec: dict[str, Any], status: int, init: str) -> int:
    """Returns its exit code."""
    _enter(init)
    pid = os.fork()
    if not pid:
        try:
            _beside(spec)
        except BaseException as error:  # noqa: BLE001
            os.write(status, f"error {error}\n".encode())
        os._exit(128)
    os.close(status)
    code = os.waitpid(pid, 0)[1]
    return 128 + os.WTERMSIG(code) if os.WIFSIGNALED(code) else os.WEXITSTATUS(code)


def main() -> None:
    with open(sys.argv[1], "rb") as file:
        spec = marshal.load(file)
    status = int(sys.argv[2])
    os.set_inheritable(status, False)
    if sys.argv[3:4] == ["--beside"]:
        os._exit(_run_beside(spec, status, sys.argv[4]))
    _libc.prctl(_PDEATHSIG, signal.SIGKILL)
    _call("unshare", _NEWNS | _NEWUTS | _NEWIPC | _NEWPID)
    pause = _pause(status) if spec["beside_pause"] else 0
    init = os.fork()
    if not init:
        try:
            _become(spec)
        except BaseException as error:  # noqa: BLE001
            os.write(status, f"error {error}\n".encode())
        os._exit(128)
    os.write(status, f"pid {init}\n".encode())
    os.close(status)
    for stream in (0, 1, 2):
        os.close(stream)
    code = os.waitpid(init, 0)[1]
    if pause:
        os.kill(pause, signal.SIGKILL)  # process 1, and all there are with it
        os.waitpid(pause, 0)
    os._exit(128 + os.WTERMSIG(code) if os.WIFSIGNALED(code) else os.WEXITSTATUS(code))


if __name__ == "__main__":
    main()
