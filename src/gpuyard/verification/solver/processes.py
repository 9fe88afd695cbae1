"""Work in processes of its own, since only the end of a process frees a GPU for sure.

An engine may start processes itself, and some leave them behind when they are closed.
They become children of the solver, and `SolverProcess.end` ends them, too.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Callable

from .engines import EngineError

_FAREWELL_S = 20.0
_SET_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36
_ours: set[int] = set()


class SolverProcessError(Exception):
    """The work has failed; the text says how."""


class ProcessTalk:
    """What a process of ours talks to the solver by."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, value: Any) -> None:
        """Tell the solver something."""
        self._connection.send(("value", value))

    def receive(self) -> Any:
        """What the solver says next; EOFError if it says nothing more."""
        return self._connection.recv()


Work = Callable[[ProcessTalk], None]


class SolverProcess:
    """A process that does `work`, which gets a connection to talk to us."""

    def __init__(self, work: Work) -> None:
        _control_process(_SET_CHILD_SUBREAPER, 1)
        # A fork costs nothing, and has what was imported and prepared.
        processes: Any = multiprocessing.get_context("fork")
        self._here, there = processes.Pipe()
        self._process = processes.Process(target=_work, args=(work, there, self._here))
        self._process.start()
        there.close()
        _ours.add(self._process.pid)

    def __enter__(self) -> SolverProcess:
        return self

    def __exit__(self, kind: Any, *details: Any) -> None:
        self.end(at_once=kind is not None)

    def send(self, value: Any) -> None:
        """Tell it something; what has ended is told by `receive`."""
        with suppress(OSError):
            self._here.send(value)

    def receive(self) -> Any:
        """What it says next; EngineError or SolverProcessError if it fails."""
        try:
            kind, value = self._here.recv()
        except (EOFError, OSError):
            self._process.join(_FAREWELL_S)
            code = self._process.exitcode
            raise SolverProcessError(f"a process ended with exit code {code}") from None
        if kind == "engine":
            raise EngineError(value)
        if kind == "failed":
            raise SolverProcessError(value)
        return value

    def end(self, *, at_once: bool = False) -> None:
        """Wait until it has ended, and end all that it has left behind.

        `at_once`: end it, too, since it has nothing more to say.
        """
        if self._process.pid not in _ours:
            return
        self._here.close()
        if at_once:
            self._process.kill()
        self._process.join(_FAREWELL_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        _ours.discard(self._process.pid)
        _end_orphans()


def _work(work: Work, talk: Connection, other: Connection) -> None:
    """The process: errors are told, and the end of the solver ends it."""
    _control_process(_SET_DEATH_SIGNAL, signal.SIGKILL)
    other.close()
    try:
        work(ProcessTalk(talk))
    except EngineError as error:
        talk.send(("engine", str(error)))
    except EOFError:  # the solver needs it no longer
        pass
    except Exception as error:  # noqa: BLE001  # an engine can raise anything
        traceback.print_exc()
        talk.send(("failed", f"{type(error).__name__}: {error}"))
    sys.stdout.flush()
    sys.stderr.flush()


def _end_orphans() -> None:
    """End every child that we did not start, and those that become ours by that."""
    while orphans := _children() - _ours:
        for process in orphans:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(process, 0)


def _children() -> set[int]:
    """The processes whose parent is this one; none where there is no /proc."""
    found: set[int] = set()
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            fields = file.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                found.add(int(file.parent.name))
    return found


def _control_process(option: int, value: int) -> None:
    """Call Linux's prctl; other systems do without."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
