"""No-op jobs from their submission until all are durable ends, against bare spawns of
the same program.
"""

import json
import os
import select
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import noop, scaled, scratch, serving, whole_node
from benchmarks.figures import Figure
from tests.support.wait import wait_until

GROUP = "jobs"
SLOTS = 2


def measure(scale: float) -> Iterator[Figure]:
    """One figure.

    A job that names no cores books one and is not limited; so there are as many slots
    as cores.
    """
    count = scaled(2000, scale, 10)
    program = noop()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:SLOTS])
    with scratch() as folder:
        floor = count / bare(program, count, folder)
    yield Figure(
        GROUP,
        f"{count:,} no-op jobs on {SLOTS} slots",
        count / ours(program, count),
        "jobs/s",
        0.55,
        floor,
        "bare spawns",
        least=True,
    )


def ours(program: str, count: int) -> float:
    """Seconds from the submission until every job has completed."""
    with serving() as (instance, web):
        if (slots := whole_node(web)) != SLOTS:
            raise SystemExit(
                f"benchmarks: jobs needs {SLOTS} cores, and this machine gives it"
                f" {slots:g}"
            )
        job = {"name": "noop", "command": [program], "workdir": str(instance.work)}
        web.submit(job)
        wait_until(
            lambda: web.counts() == {"completed": 1}, 30, "a first job to warm up with"
        )
        body = json.dumps([job] * count).encode()
        began = time.perf_counter()
        web.send("POST", "/api/v1/jobs", body)
        done = count + 1
        while (counts := web.counts()).get("completed", 0) < done:
            if counts.get("failed"):
                raise RuntimeError(f"jobs failed: {counts}")
            time.sleep(0.02)
        return time.perf_counter() - began


def bare(program: str, count: int, folder: Path) -> float:
    """Seconds in which Python starts and reaps so many: a session, an output file and a
    pidfd each, two at a time.
    """
    poll = select.poll()
    pids: dict[int, int] = {}
    started = 0
    began = time.perf_counter()
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
    return time.perf_counter() - began
