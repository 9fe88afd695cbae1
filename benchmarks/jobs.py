"""No-op jobs from their submission until all are durable ends, against bare spawns of
the same program.
"""

import json
import os
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.bench import (
    EventListener,
    noop,
    scaled,
    scratch,
    serving,
    whole_node,
)
from benchmarks.figures import Figure, alternate

GROUP = "jobs"
SLOTS = 2
Body = dict[str, Any]
Submission = tuple[str, object]
"""A path and the body that is posted there."""


def measure(scale: float) -> Iterator[Figure]:
    """Two figures: jobs that stand for themselves, and the tasks of one array.

    A job that names no cores books one and is not limited; so there are as many slots
    as cores.
    """
    count = scaled(2000, scale, 10)
    program = noop()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:SLOTS])
    rounds = scaled(5, scale)
    for name, submission, target in (
        (f"{count:,} no-op jobs", separate, 0.55),
        (f"an array of {count:,} no-ops", as_array, 0.7),
    ):
        values, floors = alternate(
            rounds,
            lambda submission=submission: count / ours(program, count, submission),
            lambda: count / bare(program, count),
        )
        yield Figure(
            GROUP,
            f"{name} on {SLOTS} slots",
            values,
            "jobs/s",
            target,
            floors,
            "bare spawns",
            least=True,
        )


def separate(job: Body, count: int) -> Submission:
    """So many jobs."""
    return "/api/v1/jobs", [job] * count


def as_array(job: Body, count: int) -> Submission:
    """One array of so many tasks."""
    return "/api/v1/arrays", {**job, "array": f"0-{count - 1}"}


def ours(
    program: str, count: int, submission: Callable[[Body, int], Submission] = separate
) -> float:
    """Seconds from the `submission` until every job, or task, is known to
    have completed, on an instance of its own.
    """
    with serving() as (instance, web):
        if (slots := whole_node(web)) != SLOTS:
            raise SystemExit(
                f"benchmarks: jobs needs {SLOTS} cores, and this machine gives it"
                f" {slots:g}"
            )
        listener = EventListener(instance.address())
        job = {"name": "noop", "command": [program], "workdir": str(instance.work)}
        web.submit(job)
        listener.wait_for_ends(1)  # it has warmed everything up
        path, content = submission(job, count)
        body = json.dumps(content).encode()
        began = time.perf_counter()
        web.send("POST", path, body)
        listener.wait_for_ends(count)
        taken = time.perf_counter() - began
        listener.close()
    return taken


def bare(program: str, count: int) -> float:
    """Seconds in which Python starts and reaps so many: a session, an output file and a
    pidfd each, two at a time.
    """
    with scratch() as folder:
        began = time.perf_counter()
        spawn_all(program, count, folder)
        return time.perf_counter() - began


def spawn_all(program: str, count: int, folder: Path) -> None:
    """Start and reap so many, with their output files in `folder`."""
    poll = select.poll()
    pids: dict[int, int] = {}
    started = 0
    while started < count or pids:
        while started < count and len(pids) < SLOTS:
            output = str(folder / f"{started}.log")
            open_output = (
                os.POSIX_SPAWN_OPEN,
                1,
                output,
                os.O_WRONLY | os.O_CREAT,
                0o600,
            )
            files = [open_output, (os.POSIX_SPAWN_DUP2, 1, 2)]
            pid = os.posix_spawn(
                program, [program], os.environ, file_actions=files, setsid=True
            )
            pidfd = os.pidfd_open(pid)
            poll.register(pidfd, select.POLLIN)
            pids[pidfd] = pid
            started += 1
        for pidfd, _ in poll.poll():
            poll.unregister(pidfd)
            os.close(pidfd)
            os.waitpid(pids.pop(pidfd), 0)
