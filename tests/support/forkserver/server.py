"""The fork server: `server.py SETTINGS`, until nobody writes to its standard input, a
named pipe in the folder of its socket.

It runs in any environment, on the standard library and `process_bounds` alone.

Each launcher sends its open files. What else its process needs is read from /proc:
arguments, environment, folder and umask. The answer is `F`, and later the wait status
of the process, or `R`: the launcher is to become the real interpreter. From then on the
launcher sends the numbers of signals, and a launcher that is gone takes its process
with it.
"""

import array
import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import select
import shutil
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import types
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from process_bounds import bounds_of, take_bounds

# An interpreter or a C library reads these once, at its start.
_READ_AT_START = (
    "LD_",
    "PYTHON",
    "MALLOC_",
    "GLIBC_",
    "LC_",
    "LANG",
    "TESTS_REAL_PYTHON",
)
# These are read at the start, too, and can be made good later (see `_take_over`).
_SEARCH_PATH = b"PYTHONPATH"
_LIBRARY_PATH = b"LD_LIBRARY_PATH"
_UNBUFFERED = b"PYTHONUNBUFFERED"
_WRITES_NO_BYTECODE = b"PYTHONDONTWRITEBYTECODE"
_MADE_GOOD = (_SEARCH_PATH, _LIBRARY_PATH, _UNBUFFERED, _WRITES_NO_BYTECODE)
# Modules that an interpreter imports by itself at its start.
_IMPORTED_AT_START = {"sitecustomize", "usercustomize"}
# With this in its environment, an agent is forked only by a keeper that is forked, too:
# whose child it is then.
_REAL_AGENT = b"TESTS_REAL_AGENT"
_AGENT = "gpuyard.node.agent"
_KEEPER = "/gpuyard/node/keeper.py"
# What a process inherits and a forked one would not have from its launcher.
_INHERITED = (
    "Uid",
    "Gid",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
    "SigBlk",
)
# Whether a process ignores these is inherited. Python ignores SIGPIPE and SIGXFSZ in
# any case, and nobody can ignore SIGKILL and SIGSTOP.
_IGNORABLE = set(range(1, 32)) - {
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGKILL,
    signal.SIGSTOP,
}
_FIRST_FREE = 1000  # as in launcher.c


@dataclass(frozen=True, slots=True)
class Settings:
    """What is imported and called, and which commands are forked.

    `calls` are functions, as `module:name`, that keep what they make. `modules` are
    those that `-m` may name. `programs`: scripts and `-c` are forked, too.
    """

    socket: str
    launcher: str
    imports: list[str]
    calls: list[str]
    modules: list[str]
    programs: bool


@dataclass(frozen=True, slots=True)
class Request:
    """A process to be: `files` are (its number there, our number).

    `arguments` are those of the interpreter, less its `-u` and the `warning_filters` of
    its `-W`.
    """

    pid: int
    warning_filters: list[str]
    unbuffered: bool  # its output
    arguments: list[str]
    environment: dict[bytes, bytes]
    groups: list[int]
    ignored: int  # signals, a bit for each
    umask: int
    files: list[tuple[int, int]]


def main() -> None:
    """Import, then serve."""
    settings = Settings(**json.loads(sys.argv[1]))
    for name in settings.imports:
        importlib.import_module(name)
    for call in settings.calls:
        module, _, name = call.partition(":")
        getattr(importlib.import_module(module), name)()
    tasks = len(list(Path("/proc/self/task").iterdir()))
    assert tasks == 1, "an import started a thread, and threads do not survive a fork"
    sys.executable = settings.launcher
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{settings.socket}.new")
    listener.listen(100)
    Path(f"{settings.socket}.new").rename(settings.socket)
    gc.collect()
    gc.freeze()
    Server(listener, settings).run()


class Server:
    """Forks, and tells each launcher how its process ended.

    Files are plain numbers: an object would close its number once more in a child.
    """

    def __init__(self, listener: socket.socket, settings: Settings) -> None:
        self._listener = listener
        self._settings = settings
        self._poll = select.poll()
        self._poll.register(0, select.POLLIN)
        self._poll.register(listener, select.POLLIN)
        self._pid_of: dict[int, int] = {}  # by the launcher's connection
        self._ended: dict[int, tuple[int, int]] = {}  # by pidfd: pid and connection
        self._mine = _description(os.getpid())

    def run(self) -> None:
        while True:
            for file, _ in self._poll.poll():
                if file == 0 and self._end():
                    return
                if file == self._listener.fileno():
                    self._accept()
                elif file in self._ended:
                    self._report(file)
                elif file in self._pid_of:
                    self._forward(file)

    def _end(self) -> bool:
        """End what was forked and take the folder away, unless somebody has come
        meanwhile; whether it did.
        """
        folder = Path(self._settings.socket).parent
        # Whoever comes holds it, too (`_locked` in __init__.py).
        lock = os.open(folder, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        held = select.poll()
        held.register(0, select.POLLIN)
        if not held.poll(0):
            os.close(lock)
            return False
        for pid, _ in self._ended.values():
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
        return True

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        size = array.array("i").itemsize
        message, files, _, _ = socket.recv_fds(connection, 300 * size, 300)
        try:
            request = _request(connection, message, files)
            self._answer(connection, request)
        except (OSError, ValueError, LookupError):
            traceback.print_exc()
        finally:
            for file in files:
                os.close(file)
            connection.close()

    def _answer(self, connection: socket.socket, request: Request) -> None:
        if not self._wanted(request) or not self._like_mine(request):
            connection.send(b"R")
            return
        # The launcher may be killed from now on; the child is to exist by then.
        pid = os.fork()
        if pid == 0:
            _become(request)
        kept = os.dup(connection.fileno())
        pidfd = os.pidfd_open(pid)
        self._pid_of[kept] = pid
        self._ended[pidfd] = (pid, kept)
        self._poll.register(kept, select.POLLIN)
        self._poll.register(pidfd, select.POLLIN)
        with suppress(OSError):
            connection.send(b"F")

    def _wanted(self, request: Request) -> bool:
        arguments = request.arguments
        if arguments[1] == "-m":
            module = arguments[2]
            # A server that starts over keeps its pid.
            again = "--inherited" in arguments
            real = module == _AGENT and _REAL_AGENT in request.environment
            return module in self._settings.modules and not again and not real
        if _is_keeper(arguments):
            is_real = _REAL_AGENT not in request.environment or os.geteuid() != 0
            return _AGENT in self._settings.modules and not is_real
        is_program = arguments[1] == "-c" or arguments[1].endswith(".py")
        return is_program and self._settings.programs

    def _like_mine(self, request: Request) -> bool:
        theirs = _read_at_start(request.environment)
        mine = _read_at_start(os.environb)
        return (
            theirs == mine
            and (request.groups == sorted(os.getgroups()) or os.geteuid() == 0)
            and _more_folders(request.environment) is not None
            and _description(request.pid) == self._mine
            and (self._may_take_bounds() or bounds_of(request.pid) == bounds_of())
        )

    def _may_take_bounds(self) -> bool:
        """Whether a fork may take over the bounds of its launcher: jobs have some."""
        return self._settings.programs and os.geteuid() == 0

    def _report(self, pidfd: int) -> None:
        pid, connection = self._ended.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        if self._pid_of.pop(connection, None):
            self._poll.unregister(connection)
        with suppress(OSError):
            os.write(connection, struct.pack("i", status))
        os.close(connection)

    def _forward(self, connection: int) -> None:
        pid = self._pid_of[connection]
        try:
            numbers = os.read(connection, 100)
        except OSError:
            numbers = b""
        if not numbers:  # the launcher was killed
            del self._pid_of[connection]
            self._poll.unregister(connection)
            os.kill(pid, signal.SIGKILL)
        for number in numbers:
            os.kill(pid, number)


def _request(connection: socket.socket, message: bytes, files: list[int]) -> Request:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, _, _ = struct.unpack("3i", credentials)
    process = Path(f"/proc/{pid}")
    arguments = (process / "cmdline").read_bytes().removesuffix(b"\0").split(b"\0")
    lines = (process / "environ").read_bytes().split(b"\0")
    pairs = [line.split(b"=", 1) for line in lines if b"=" in line]
    numbers = list(array.array("i", message)) if files else []
    words = [os.fsdecode(argument) for argument in arguments]
    warning_filters: list[str] = []
    environment = dict(pairs)
    unbuffered = bool(environment.get(_UNBUFFERED))
    while words[1] in ("-W", "-u") and len(words) > 2:
        if words[1] == "-u":
            unbuffered = True
        else:
            warning_filters.append(words.pop(2))
        del words[1]
    status = _status(pid)
    return Request(
        pid,
        warning_filters,
        unbuffered,
        words,
        environment,
        sorted(map(int, status["Groups"].split())),
        int(status["SigIgn"], 16),
        int(status["Umask"], 8),
        list(zip(numbers, files, strict=True)),
    )


def _read_at_start(environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The variables that only the start of an interpreter heeds."""
    return {
        name: value
        for name, value in environment.items()
        if name.decode().startswith(_READ_AT_START) and name not in _MADE_GOOD
    }


def _more_folders(environment: Mapping[bytes, bytes]) -> list[str] | None:
    """The folders of `PYTHONPATH` that a forked process is to search, and we do not;
    None if it would come too late to do so: something in them would have been imported
    at the start, or is imported from elsewhere.
    """
    theirs = environment.get(_SEARCH_PATH, b"")
    mine = os.environb.get(_SEARCH_PATH, b"")
    if theirs == mine:
        return []
    folders = [folder for folder in os.fsdecode(theirs).split(":") if folder]
    names = _names_in(folders)
    come_too_late = names & _IMPORTED_AT_START or names & sys.modules.keys()
    return None if mine or come_too_late else folders


def _load_libraries(environment: Mapping[bytes, bytes]) -> None:
    """Load what `LD_LIBRARY_PATH` holds: the C library does not look there any more,
    but takes what is loaded for the library of that name.
    """
    theirs = environment.get(_LIBRARY_PATH, b"")
    if theirs != os.environb.get(_LIBRARY_PATH, b""):
        for folder in os.fsdecode(theirs).split(":"):
            for library in Path(folder).glob("lib*.so*"):
                ctypes.CDLL(str(library))


def _names_in(folders: list[str]) -> set[str]:
    """What modules these folders hold, and perhaps more names."""
    names: set[str] = set()
    for folder in map(Path, folders):
        if folder.is_dir():
            names |= {file.name.partition(".")[0] for file in folder.iterdir()}
    return names


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    pairs = [line.split(":", 1) for line in lines]
    return {name: value.strip() for name, value in pairs}


def _description(pid: int) -> list[str]:
    """All that a process inherits and that a forked one has from the fork server."""
    process = Path(f"/proc/{pid}")
    status = _status(pid)
    spaces = sorted((process / "ns").iterdir())
    return [
        *[status.get(name, "") for name in _INHERITED],
        *[str(space.readlink()) for space in spaces],
        str((process / "root").readlink()),
        (process / "oom_score_adj").read_text(),
    ]


def _become(request: Request) -> None:
    """In the child: run what the launcher was asked to run, and never return."""
    code = 1
    try:
        # First, so that an error from here on is printed where the program prints.
        _take_files(request.files)
        _take_over(request)
        code = _run(request.arguments)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        os._exit(code)


def _take_over(request: Request) -> None:
    os.setsid()
    if os.geteuid() == 0:
        os.setgroups(request.groups)
    os.chdir(f"/proc/{request.pid}/cwd")
    os.umask(request.umask)
    if bounds_of() != bounds_of(request.pid):
        take_bounds(request.pid)
    priority = os.getpriority(os.PRIO_PROCESS, request.pid)
    os.setpriority(os.PRIO_PROCESS, 0, priority)
    _ignore(request.ignored)
    # The first folder of the path is replaced by the program's own.
    sys.path[1:1] = _more_folders(request.environment) or []
    _load_libraries(request.environment)
    os.environb.clear()
    os.environb.update(request.environment)
    warnings._processoptions(request.warning_filters)
    sys.dont_write_bytecode = bool(request.environment.get(_WRITES_NO_BYTECODE))
    time.tzset()
    sys.orig_argv = request.arguments
    _open_standard_files(unbuffered=request.unbuffered)


def _ignore(signals: int) -> None:
    """Ignore these and no others, as an interpreter that was started so."""
    for number in _IGNORABLE:
        usual = signal.SIG_DFL
        if number == signal.SIGINT:
            usual = signal.default_int_handler
        is_ignored = signals >> number - 1 & 1
        signal.signal(number, signal.SIG_IGN if is_ignored else usual)


def _take_files(files: list[tuple[int, int]]) -> None:
    copies = [
        (number, fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE))
        for number, file in files
    ]
    os.closerange(0, _FIRST_FREE)
    for number, copy in copies:
        os.dup2(copy, number)
        os.close(copy)


def _open_standard_files(*, unbuffered: bool) -> None:
    for number, name, mode in (
        (0, "stdin", "r"),
        (1, "stdout", "w"),
        (2, "stderr", "w"),
    ):
        old = getattr(sys, name)
        try:
            write_through = unbuffered and mode == "w"
            buffering = 0 if write_through else -1
            raw = open(number, f"{mode}b", buffering, closefd=False)  # noqa: SIM115
        except OSError:
            made = None
        else:
            made = io.TextIOWrapper(
                raw,
                old.encoding,
                old.errors,
                line_buffering=mode == "w" and (number == 2 or raw.isatty()),
                write_through=write_through,
            )
        setattr(sys, name, made)
        setattr(sys, f"__{name}__", made)


def _run(arguments: list[str]) -> int:
    """The exit code, as the interpreter would make it."""
    code = 0
    try:
        _execute(arguments)
    except SystemExit as error:
        code = _exit_code(error)
    except BaseException as error:  # noqa: BLE001
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
        if isinstance(error, KeyboardInterrupt):
            _flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    threading._shutdown()
    atexit._run_exitfuncs()
    return code if _flush() else 120


def _execute(arguments: list[str]) -> None:
    if arguments[1] == "-m":
        module = arguments[2]
        # It runs anew: as `__main__`, whatever was imported before.
        sys.modules.pop(f"{module}.__main__", None)
        if not hasattr(sys.modules.get(module), "__path__"):
            sys.modules.pop(module, None)
        sys.argv = ["-m", *arguments[3:]]
        sys.path[0] = str(Path.cwd())
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    elif _is_keeper(arguments):
        _show_as(arguments)
        os.posix_spawnp = _fork_agent
        sys.argv = arguments[2:]
        sys.path[0] = str(Path(sys.argv[0]).parent)
        runpy.run_path(sys.argv[0], run_name="__main__")
    elif arguments[1] == "-c":
        sys.argv = ["-c", *arguments[3:]]
        sys.path[0] = ""
        main_module = types.ModuleType("__main__")
        sys.modules["__main__"] = main_module
        exec(compile(arguments[2], "<string>", "exec"), main_module.__dict__)
    else:
        script = arguments[1]
        sys.argv = arguments[1:]
        sys.path[0] = str(Path(script).resolve().parent)
        main_module = types.ModuleType("__main__")
        main_module.__file__ = script
        sys.modules["__main__"] = main_module
        code = compile(Path(script).read_bytes(), script, "exec")
        exec(code, main_module.__dict__)


def _is_keeper(arguments: list[str]) -> bool:
    return arguments[1] == "-I" and arguments[2].endswith(_KEEPER)


def _fork_agent(
    _program: str,
    arguments: list[str],
    environment: Mapping[str, str],
    *,
    setpgroup: int,
    setsigmask: list[int],
    setsigdef: set[int],
) -> int:
    """In the place of `os.posix_spawnp` in a keeper, whose child the agent has to be."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setpgid(0, setpgroup)
        _close_on_exec()
        _ignore(0)
        for number in setsigdef - _IGNORABLE - {signal.SIGPIPE, signal.SIGXFSZ}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, setsigmask)
        os.environ.clear()
        os.environ.update(environment)
        sys.orig_argv = arguments
        _show_as(arguments)
        code = _run(arguments)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        os._exit(code)


def _close_on_exec() -> None:
    """Close what a new program would not get."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  # it holds its own, too
        with suppress(OSError):
            if not os.get_inheritable(int(name)):
                os.close(int(name))


def _show_as(arguments: list[str]) -> None:
    """Let others see these arguments: a keeper is found by its own. They are written
    over the fork server's, which are longer.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = map(int, fields[45:47])
    text = b"".join(os.fsencode(word) + b"\0" for word in arguments)
    assert len(text) <= end - start, "no room for the arguments"
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    sys.stderr.write(f"{error.code}\n")
    return 1


def _flush() -> bool:
    """False where standard output could not be written."""
    done = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError):
            done = False
    return done


if __name__ == "__main__":
    main()
