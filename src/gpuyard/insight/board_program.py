"""Runs TensorBoard over the event files of jobs, on the node that has them.

`python3 board_program.py IDLE_SECONDS [LABEL FOLDER START END]…`; END is empty
for a job that runs. TensorBoard reads a folder of links to the event files that each
job has written, below the label of the job; so it sees nothing else of their folders.
The program ends after IDLE_SECONDS without a connection. It uses only the standard
library. The folders may be somebody else's, so it trusts nothing in them.
"""

import importlib.util
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple

EVENTS = re.compile(r"events\.out\.tfevents\.(\d{9,12})\.")
SKIPPED = {".git", ".venv", "venv", "node_modules", "__pycache__", "site-packages"}
# Of one job: so many event files are shown, and so many names looked at.
MOST_FILES = 2_000
MOST_NAMES = 200_000
# The name of a file has whole seconds, and clocks of file systems may be behind.
SLACK_S = 2.0
LOOK_S = 5.0
READY_S = 60.0
# In /proc/net/tcp: 127.0.0.1, and the state of a port at which a program listens.
HERE = "{:08X}".format(*struct.unpack("=I", socket.inet_aton("127.0.0.1")))
LISTENS = "0A"


class ShownJob:
    """A job whose event files are shown."""

    def __init__(self, label: str, folder: str, start: str, end: str) -> None:
        self.label = label
        self.folder = Path(folder)
        self.start = float(start) - SLACK_S
        self.end = float(end) + SLACK_S if end else float("inf")

    def event_files(self) -> list[Path]:
        """The event files that were begun while it ran, those of upper folders first:
        MOST_FILES at most.
        """
        found: list[Path] = []
        seen = 0
        waiting = deque([str(self.folder)])
        while waiting:
            for entry in listed(waiting.popleft()):
                seen += 1
                if seen > MOST_NAMES or len(found) == MOST_FILES:
                    return found
                if entry.is_folder:
                    waiting.append(entry.path)
                elif self.has_begun(entry.name):
                    found.append(Path(entry.path))
        return found

    def has_begun(self, name: str) -> bool:
        """Whether this is the name of an event file that was begun while it ran."""
        match = EVENTS.match(name)
        return match is not None and self.start <= int(match[1]) <= self.end


class Listed(NamedTuple):
    """What a folder has: another folder, or a file."""

    path: str
    name: str
    is_folder: bool


def listed(folder: str) -> Iterator[Listed]:
    """What a folder has, as far as it can be read. No pipes and sockets, at which a
    reader would wait for ever, no links, which may lead anywhere, and no names of
    several lines: TensorBoard prints names where this program says its port.
    """
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if "\n" in entry.name:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in SKIPPED:
                        yield Listed(entry.path, entry.name, True)
                elif entry.is_file(follow_symlinks=False):
                    yield Listed(entry.path, entry.name, False)
    except OSError:
        return


def link_new(jobs: list[ShownJob], board: Path) -> int:
    """Link event files that have come; how many there are."""
    count = 0
    for job in jobs:
        for file in job.event_files():
            try:
                link(file, board, Path(job.label, file.relative_to(job.folder)))
            except OSError:
                continue  # its path is too long, or it has the name of another
            count += 1
    return count


def link(file: Path, board: Path, name: Path) -> None:
    """Let a file have this name below `board`; OSError."""
    place = board / name
    above = [board / parent for parent in name.parents]
    if any(parent.is_symlink() for parent in above):
        # What was a file is a folder now: a link would be made in that.
        raise NotADirectoryError(str(place))
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.is_symlink():
        place.symlink_to(file)


class PortUse(NamedTuple):
    """What the kernel says of a connection, or of whoever listens: its state, and the
    account that has it.
    """

    state: str
    uid: int


def uses(port: int) -> Iterator[PortUse]:
    """Of a port of 127.0.0.1: of each connection, and of whoever listens."""
    wanted = f"{HERE}:{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            (local, remote, state) = words[1:4]
            # Who has closed first keeps the trace.
            if local.endswith(wanted) or remote.endswith(wanted):
                yield PortUse(state, int(words[7]))


def was_used(port: int) -> bool:
    """Whether somebody is connected to a port of this node, or was within the last
    minute: browsers ask now and then, on connections that end at once.
    """
    return any(one.state != LISTENS for one in uses(port))


def is_open(port: int, uid: int) -> bool:
    """Whether a program of this account listens on a port of this node. Another one may
    have taken the port, and pose as TensorBoard.
    """
    return PortUse(LISTENS, uid) in uses(port)


def say(line: str) -> None:
    """Print a line at once: `gpuyard tensorboard` waits for it. It stays one line: the
    name of a folder must not say what this program says.
    """
    sys.stdout.write(f"{' '.join(line.splitlines())}\n")
    sys.stdout.flush()


def free_port() -> int:
    """A port of this node that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def end(number: int, _: "FrameType | None") -> None:
    """Leave at a signal, and clean up before."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def missing(jobs: list[ShownJob]) -> list[ShownJob]:
    """Those whose folders are not here, which it says."""
    found = [job for job in jobs if not os.access(job.folder, os.R_OK | os.X_OK)]
    for job in found:
        say(f"{job.folder} is not on this node, or your account may not read it")
    return found


def main(arguments: list[str]) -> int:
    """Run until idle; the exit code."""
    signal.signal(signal.SIGTERM, end)
    if importlib.util.find_spec("tensorboard") is None:
        say(f"{sys.executable} has no tensorboard: pip install tensorboard")
        return 3
    (idle, *words) = arguments
    jobs = [ShownJob(*words[at : at + 4]) for at in range(0, len(words), 4)]
    if len(missing(jobs)) == len(jobs):
        return 4
    # In the folder of its own job, which is removed even if this is killed.
    here = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="gpuyard-board-", dir=here) as name:
        board = Path(name)
        if link_new(jobs, board) == 0:
            say("These jobs have written no event files yet.")
        port = free_port()
        options = ["--host", "127.0.0.1", "--port", str(port), "--logdir", name]
        options += ["--reload_interval", str(LOOK_S)]
        start = [sys.executable, "-m", "tensorboard.main", *options]
        # With `-m`, Python also imports from the folder where it begins.
        process = subprocess.Popen(start, stdin=subprocess.DEVNULL, cwd="/")
        try:
            return serve(process, port, jobs, board, float(idle))
        finally:
            process.terminate()
            process.wait()


def begins_to_listen(process: "subprocess.Popen[bytes]", port: int) -> bool:
    """Whether it listens soon. It has ended if the port was taken."""
    started = time.monotonic()
    while process.poll() is None and time.monotonic() - started < READY_S:
        if is_open(port, os.geteuid()) and process.poll() is None:
            return True
        time.sleep(0.1)
    return False


def serve(
    process: "subprocess.Popen[bytes]",
    port: int,
    jobs: list[ShownJob],
    board: Path,
    idle_s: float,
) -> int:
    """Link new event files until nobody looks any more; the exit code."""
    if not begins_to_listen(process, port):
        say("TensorBoard did not start to listen")
        return 1
    say(f"TensorBoard listens on port {port}")
    last = time.monotonic()
    while process.poll() is None:
        time.sleep(min(LOOK_S, idle_s))
        link_new(jobs, board)
        if was_used(port):
            last = time.monotonic()
        elif time.monotonic() - last > idle_s:
            say("nobody looked at it: it ends")
            return 0
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
