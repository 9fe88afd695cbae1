"""Runs TensorBoard over the event files of jobs, on the node that has them.

`python3 board_program.py IDLE_SECONDS [LABEL FOLDER START END]…`; END is empty
for a job that runs. TensorBoard reads a folder of links to the event files that each
job has written, below the label of the job; so it sees nothing else of their folders.
The program ends after IDLE_SECONDS without a connection. It uses only the standard
library.
"""

import importlib.util
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

EVENTS = re.compile(r"events\.out\.tfevents\.(\d{9,12})\.")
SKIPPED = {".git", ".venv", "venv", "node_modules", "__pycache__", "site-packages"}
MOST_FOLDERS = 20_000
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
        """The event files that were begun while it ran."""
        found: list[Path] = []
        for seen, (here, folders, files) in enumerate(os.walk(self.folder)):
            if seen > MOST_FOLDERS:
                break
            folders[:] = [name for name in folders if name not in SKIPPED]
            for name in files:
                match = EVENTS.match(name)
                if match and self.start <= int(match[1]) <= self.end:
                    found.append(Path(here, name))
        return found


def link_new(jobs: list[ShownJob], board: Path) -> int:
    """Link event files that have come; how many there are."""
    count = 0
    for job in jobs:
        for file in job.event_files():
            link = board / job.label / file.relative_to(job.folder)
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(file)
            count += 1
    return count


def states(port: int) -> Iterator[str]:
    """What the kernel says of a port of 127.0.0.1: the state of each connection, and
    of whoever listens.
    """
    wanted = f"{HERE}:{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            (local, remote, state) = line.split()[1:4]
            # Who has closed first keeps the trace.
            if local.endswith(wanted) or remote.endswith(wanted):
                yield state


def was_used(port: int) -> bool:
    """Whether somebody is connected to a port of this node, or was within the last
    minute: browsers ask now and then, on connections that end at once.
    """
    return any(state != LISTENS for state in states(port))


def is_open(port: int) -> bool:
    """Whether a program listens on a port of this node."""
    return LISTENS in states(port)


def say(line: str) -> None:
    """Print a line at once: `gpuyard tensorboard` waits for it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def free_port() -> int:
    """A port of this node that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main(arguments: list[str]) -> int:
    """Run until idle; the exit code."""
    if importlib.util.find_spec("tensorboard") is None:
        say(f"{sys.executable} has no tensorboard: pip install tensorboard")
        return 3
    (idle, *words) = arguments
    jobs = [ShownJob(*words[at : at + 4]) for at in range(0, len(words), 4)]
    with tempfile.TemporaryDirectory(prefix="gpuyard-board-") as name:
        board = Path(name)
        if link_new(jobs, board) == 0:
            say("These jobs have written no event files yet.")
        port = free_port()
        options = ["--host", "127.0.0.1", "--port", str(port), "--logdir", name]
        options += ["--reload_interval", str(LOOK_S)]
        start = [sys.executable, "-m", "tensorboard.main", *options]
        # With `-m`, Python also imports from its folder, which may be somebody else's.
        process = subprocess.Popen(start, stdin=subprocess.DEVNULL, cwd="/")
        try:
            return serve(process, port, jobs, board, float(idle))
        finally:
            process.terminate()
            process.wait()


def serve(
    process: "subprocess.Popen[bytes]",
    port: int,
    jobs: list[ShownJob],
    board: Path,
    idle_s: float,
) -> int:
    """Link new event files until nobody looks any more; the exit code."""
    started = time.monotonic()
    while not is_open(port):
        if process.poll() is not None or time.monotonic() - started > READY_S:
            say("TensorBoard did not start to listen")
            return 1
        time.sleep(0.1)
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
