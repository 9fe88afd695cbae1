"""The program of a job of `gpuyard dev`: it keeps a place until nobody uses it.

It runs on the node with any Python from 3.9 on, so it imports nothing of gpuyard. A
place is used while somebody types to one of its terminals, its processes use more than
a twentieth of a core, or a GPU of it is busy. It may run JupyterLab in it.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_ATTEMPT = "GPUYARD_ATTEMPT_ID"
# Less is what idle programs use.
_CORES = 0.05
_GPU_PERCENT = 5
_WARN_AT = 0.8
_LONGEST_PAUSE_S = 10.0
_TICKS = os.sysconf("SC_CLK_TCK")


class PlaceUse:
    """Tells whether the place of this process's attempt is used."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._ticks: dict[int, int] = {}
        self._typed_at: dict[str, float] = {}
        self.used()

    def used(self) -> bool:
        """Whether it was used since the last call."""
        now = time.monotonic()
        pids = self._pids()
        ticks = {pid: _ticks_of(pid) for pid in pids}
        spent = sum(max(ticks[pid] - self._ticks.get(pid, 0), 0) for pid in pids)
        cores = spent / _TICKS / max(now - self._at, 1e-3)
        typed_at = {path: _read_at(path) for path in terminals(pids)}
        has_typed = any(
            typed_at[path] > self._typed_at.get(path, 0) for path in typed_at
        )
        self._at = now
        self._ticks = ticks
        self._typed_at = typed_at
        return cores > _CORES or has_typed or _gpu_is_busy()

    def _pids(self) -> list[int]:
        """The processes of the attempt, without this one."""
        return [pid for pid in pids_of_attempt() if pid != os.getpid()]


def pids_of_attempt() -> list[int]:
    """The processes that have inherited this process's attempt."""
    mark = f"{_ATTEMPT}={os.environ.get(_ATTEMPT, '')}".encode()
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended, or is somebody else's
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def terminals(pids: Iterable[int]) -> set[str]:
    """The terminals on which these processes read."""
    found: set[str] = set()
    for pid in pids:
        with suppress(OSError):
            path = str(Path(f"/proc/{pid}/fd/0").readlink())
            if path.startswith("/dev/pts/"):
                found.add(path)
    return found


def _ticks_of(pid: int) -> int:
    """The processor time of a process, in ticks of the clock."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def _read_at(path: str) -> float:
    """When something typed on a terminal was read last."""
    try:
        return Path(path).stat().st_atime
    except OSError:
        return 0.0


def _gpu_is_busy() -> bool:
    """Whether a GPU of the attempt is at work, as far as nvidia-smi says it."""
    if not os.environ.get("CUDA_VISIBLE_DEVICES"):
        return False
    ask = "--query-gpu=uuid,index,utilization.gpu"
    try:
        said = subprocess.run(
            ["nvidia-smi", ask, "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=20,
        ).stdout.decode()
    except (OSError, subprocess.TimeoutExpired):
        return False
    return bool(busy_gpus(said))


def busy_gpus(said: str) -> list[str]:
    """The GPUs of the attempt that are at work, in what nvidia-smi has said."""
    mine = [one for one in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if one]
    busy: list[str] = []
    for line in said.splitlines():
        uuid, index, percent = [field.strip() for field in line.split(",")]
        is_mine = any(one == index or uuid.startswith(one) for one in mine)
        if is_mine and percent.isdigit() and int(percent) > _GPU_PERCENT:
            busy.append(uuid)
    return busy


def keep(idle_s: float, is_over: Callable[[], bool] = lambda: False) -> None:
    """Wait until the place was not used for `idle_s` seconds, or it is over."""
    usage = PlaceUse()
    used_at = time.monotonic()
    is_warned = False
    while not is_over():
        time.sleep(min(_LONGEST_PAUSE_S, idle_s / 10))
        if usage.used():
            used_at = time.monotonic()
            is_warned = False
        idle_for = time.monotonic() - used_at
        if idle_for >= idle_s:
            tell(f"ends after {in_words(idle_s)} without use")
            return
        if idle_for >= _WARN_AT * idle_s and not is_warned:
            is_warned = True
            left = in_words(idle_s - idle_for)
            tell(f"not used for {in_words(idle_for)}, ends in {left}")


def in_words(seconds: float) -> str:
    """A time for people."""
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def log(text: str) -> None:
    """Say it in the log."""
    sys.stdout.write(f"gpuyard dev: {text}\n")
    sys.stdout.flush()


def tell(text: str) -> None:
    """Say it in the log, and on the terminals of the place."""
    log(text)
    for path in terminals(pids_of_attempt()):
        with suppress(OSError):  # it has just been closed
            Path(path).write_text(f"\r\ngpuyard dev: {text}\r\n")


def free_port(wanted: int) -> int:
    """`wanted`, if nobody has it, or else a port that is free now."""
    for port in (wanted, 0):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    return wanted


def _listens(port: int) -> bool:
    """Whether a program of this node answers on the port."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def start_jupyter(port: int) -> subprocess.Popen[bytes]:
    """JupyterLab on this port, once it listens; its token is in a file that only its
    account reads.
    """
    token = secrets.token_urlsafe(24)
    # A folder of its own, which nobody else may enter.
    path = Path(tempfile.mkdtemp(prefix="gpuyard-dev-"), "token")
    path.write_text(token)
    command = ["jupyter", "lab", "--no-browser", "--ServerApp.ip=127.0.0.1"]
    command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    if os.geteuid() == 0:
        # Jobs of root are allowed, as in many containers; JupyterLab has to be told.
        command.append("--ServerApp.allow_root=True")
    try:
        jupyter = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            env=dict(os.environ, JUPYTER_TOKEN=token),
        )
    except OSError as error:
        sys.exit(f"gpuyard dev: jupyter cannot be started: {error.strerror}")
    # Before that, whoever forwards the port on the same machine could take it.
    while jupyter.poll() is None and not _listens(port):
        time.sleep(0.1)
    if jupyter.poll() is None:
        log(f"jupyter port={port} token={path}")
    return jupyter


def main() -> None:
    """Keep the place of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--idle", type=float, required=True, help="seconds")
    parser.add_argument("--jupyter", type=int, metavar="PORT")
    asked = parser.parse_args()
    if asked.jupyter is None:
        keep(asked.idle)
        return
    jupyter = start_jupyter(free_port(asked.jupyter))
    keep(asked.idle, lambda: jupyter.poll() is not None)
    if jupyter.poll() is None:
        jupyter.terminate()
    elif jupyter.returncode:
        sys.exit(jupyter.returncode)


if __name__ == "__main__":
    main()
