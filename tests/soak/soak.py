"""One soak: work, kills and samples side by side, then calm, then the reckoning."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any

import psutil

from tests.soak.check import broken_promises, slope_mb_per_minute
from tests.soak.costs import change_price
from tests.soak.work import MOST_WAITING, Work
from tests.support.forkserver import REAL_AGENT, REAL_PYTHON
from tests.support.instance import TestInstance, make_instance
from tests.support.postgres import running_server
from tests.support.wait import wait_until

VICTIMS = (
    ("server",),
    ("agent",),
    ("keeper",),
    ("server", "agent"),
    ("server", "keeper"),
    ("keeper", "agent"),
    ("server", "keeper", "agent"),
)
MOST_MB_PER_MINUTE = 2.0


@dataclass
class Result:
    """How it went.

    `samples` are (seconds, megabytes of the server) of the undisturbed second half.
    """

    jobs: int = 0
    rounds: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list[str])
    samples: list[tuple[float, float]] = field(
        default_factory=list[tuple[float, float]]
    )

    def __str__(self) -> str:
        slope = (
            f", memory {slope_mb_per_minute(self.samples):+.2f} MB/min"
            if len(self.samples) > 1
            else ""
        )
        said = (
            f"{self.jobs} jobs and {self.rounds} rounds of kill -9 in"
            f" {self.seconds:.0f} s{slope}; "
        )
        return said + (
            f"{len(self.faults)} BROKEN PROMISES"
            if self.faults
            else "every promise kept"
        )


def soak(
    *,
    seed: int,
    rounds: int,
    storm_s: float,
    flat_s: float,
    database: str,
    most_waiting: int = MOST_WAITING,
    real_python: bool = True,
) -> Result:
    """Kill for `storm_s` seconds and at least `rounds` times while jobs come, of which
    about `most_waiting` are unfinished; then jobs alone for `flat_s`. Without
    `real_python`, servers and commands are forks, which start sooner.
    """
    dice = Random(seed)
    result = Result()
    began = time.monotonic()
    real = {REAL_PYTHON if real_python else REAL_AGENT: "1"}
    server: Any = running_server() if database == "postgresql" else nullcontext(None)
    with (
        server as postgres,
        make_instance(GPUYARD_SCHEDULER__RETRY_BASE_S="0.05", **real) as instance,
    ):
        instance.ok("up", *(["--database", postgres.create()] if postgres else []))
        work = Work(instance, Random(seed + 1), most_waiting)
        with _working(work):
            result.rounds = _kill(work, dice, rounds, storm_s)
            result.samples = _sample(instance, flat_s)
        wait_until(lambda: work.unfinished() == 0, 120, "every job to be over")
        result.jobs = len(work.wanted)
        result.faults = broken_promises(work)
        stopped = instance.run("down")
        if stopped.returncode:
            log = (instance.home.logs / "server.log").read_text()[-3000:]
            result.faults.append(f"`down` failed: {stopped.stderr}{log}")
        checked = instance.run("ledger", "check")
        if checked.returncode:
            result.faults.append(
                "the tables are not the journal's fold:"
                f" {checked.stdout}{checked.stderr}"
            )
    result.seconds = time.monotonic() - began
    # A minute is too short to tell growth from a heap that finds its size.
    if flat_s >= 60 and slope_mb_per_minute(result.samples) > MOST_MB_PER_MINUTE:
        result.faults.append(
            f"the server grows by {slope_mb_per_minute(result.samples):.2f} MB a minute"
        )
    return result


@contextmanager
def _working(work: Work) -> Iterator[None]:
    thread = threading.Thread(target=work.run)
    thread.start()
    try:
        yield
    finally:
        work.stop.set()
        thread.join()


def _kill(work: Work, dice: Random, rounds: int, storm_s: float) -> int:
    """Round after round; between two of them at least one more job is acknowledged."""
    instance = work.instance
    deadline = time.monotonic() + storm_s
    done = 0
    while done < rounds or time.monotonic() < deadline:
        before = len(work.wanted)
        wait_until(
            lambda n=before: len(work.wanted) > n, 90, "a job to be acknowledged"
        )
        wait_until(lambda: instance.pid("agent"), what="an agent to live")
        time.sleep(dice.expovariate(1.0))
        change_price(instance, Decimal(f"{3600 + done}.07"))
        instance.kill(*dice.choice(VICTIMS))
        done += 1
    return done


def _sample(instance: TestInstance, flat_s: float) -> list[tuple[float, float]]:
    """The server's memory once a second; the first half, in which its caches fill, does
    not count.
    """
    began = time.monotonic()
    samples = list[tuple[float, float]]()
    while (now := time.monotonic() - began) < flat_s:
        pid = instance.pid("server")
        if pid and now > flat_s / 2:
            samples.append((now, psutil.Process(pid).memory_info().rss / 1e6))
        time.sleep(1.0)
    return samples
