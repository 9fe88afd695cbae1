"""Starting a job: our posix_spawn against subprocess.Popen.

`python -m benchmarks.decisions.spawning` starts a static no-op both ways, in turns. It
prints how long a start takes, and how long it keeps the interpreter's other threads
from running: a second thread notes its longest pause, as the agent's event loop would
feel it.
"""

import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable

from benchmarks.bench import noop
from gpuyard.node.launcher.posix_spawn import Streams, posix_spawn

ROUNDS = 10
STARTS_PER_ROUND = 100
# The agent's resident memory after some days of work.
BALLAST_BYTES = 150_000_000


class PauseWatch:
    """A thread that notes the longest time for which it could not run."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "PauseWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        before = time.perf_counter()
        while not self._stopped.is_set():
            time.sleep(0)  # gives the interpreter's lock away, and wants it back
            now = time.perf_counter()
            self.longest_s = max(self.longest_s, now - before)
            before = now


def with_posix_spawn(program: str, folder: str, null: int) -> int:
    """Start the program as the launcher does; return its pid."""
    path = os.fsencode(program)
    environment = [b"=".join(entry) for entry in os.environb.items()]
    streams = Streams(stdin=null, output=null)
    return posix_spawn(path, [path], environment, os.fsencode(folder), streams)


def with_popen(program: str, folder: str, null: int) -> int:
    """Start the program by the standard library; return its pid."""
    process = subprocess.Popen(
        [program],
        cwd=folder,
        env=os.environb,
        stdin=null,
        stdout=null,
        stderr=null,
        start_new_session=True,
    )
    process.returncode = 0  # or its destructor would take the exit status from us
    return process.pid


WAYS: dict[str, Callable[[str, str, int], int]] = {
    "posix_spawn": with_posix_spawn,
    "Popen": with_popen,
}


def measure_starts(way: Callable[[str, str, int], int], program: str) -> list[float]:
    """Seconds that each of a round's starts took."""
    taken: list[float] = []
    null = os.open(os.devnull, os.O_RDWR)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(STARTS_PER_ROUND):
            began = time.perf_counter()
            pid = way(program, folder, null)
            taken.append(time.perf_counter() - began)
            os.waitpid(pid, 0)
    os.close(null)
    return taken


def describe(name: str, rounds: list[list[float]]) -> str:
    """The median of all starts, the best round's, and the 99th percentile."""
    every = [seconds for one in rounds for seconds in one]
    median = statistics.median(every) * 1e3
    best = min(statistics.median(one) for one in rounds) * 1e3
    p99 = statistics.quantiles(every, n=100)[98] * 1e3
    return f"{name:12} p50 {median:.2f} ms (best round {best:.2f})   p99 {p99:.2f} ms"


def main() -> None:
    """Measure both ways in turns and print the figures."""
    program = noop()
    ballast = bytearray(BALLAST_BYTES)
    ballast[::4096] = b"1" * len(ballast[::4096])
    starts: dict[str, list[list[float]]] = {name: [] for name in WAYS}
    pauses: dict[str, list[float]] = {name: [] for name in WAYS}
    for number in range(ROUNDS):
        names = list(WAYS) if number % 2 else list(reversed(WAYS))
        for name in names:
            starts[name].append(measure_starts(WAYS[name], program))
        for name in names:
            with PauseWatch() as watch:
                measure_starts(WAYS[name], program)
            pauses[name].append(watch.longest_s)
    print("one start")
    for name, rounds in starts.items():
        print(describe(name, rounds))
    print("longest pause of another thread in each round, the median of them")
    for name, seconds in pauses.items():
        print(f"{name:12} {statistics.median(seconds) * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
