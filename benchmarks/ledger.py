"""Durable writes, the ledger against bare sqlite3 that writes the same rows with the
same pragmas.
"""

import asyncio
import gc
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.bench import (
    job_events,
    raw_connection,
    raw_insert,
    rows_of,
    scaled,
    scratch,
    sliced,
    timed,
    write,
)
from benchmarks.figures import Figure, alternate, in_rounds
from gpuyard.domain.events import Event
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.writer import Writer

GROUP = "ledger"
WRITERS = 128


def measure(scale: float) -> Iterator[Figure]:
    """One acknowledgement, many writers, one large batch, a commit beside a busy
    loop.
    """
    rounds = scaled(5, scale)
    with scratch() as folder:
        yield acknowledgement(folder, rounds, scaled(80, scale, 10))
        yield writers(folder, rounds, scaled(20, scale, 2))
        yield batch(folder, scaled(3, scale), scaled(100_000, scale, 100))
        yield beside_work(folder, rounds, scaled(10, scale, 3))


def acknowledgement(folder: Path, rounds: int, times: int) -> Figure:
    """One client that waits for each commit; each is followed by a bare one."""
    count = rounds * times
    events = iter(job_events(count))
    rows = rows_of(job_events(count), folder)
    places = itertools.count()
    raw = raw_connection(folder / "raw1.db")
    ledger = Ledger.open(folder / "one.db")
    writer = ledger.writer()

    async def start() -> None:
        writer.start()

    def bare() -> float:
        place = next(places)
        row = sliced(rows, place, place + 1)
        return timed(lambda: raw_insert(raw, row)) * 1000

    with asyncio.Runner() as runner:
        runner.run(start())
        ours, floors = alternate(
            count, lambda: runner.run(committed_ms(writer, [next(events)])), bare
        )
        runner.run(writer.close())
    ledger.close()
    return Figure(
        GROUP,
        "one client's acknowledgement",
        in_rounds(ours, rounds),
        "ms",
        1.5,
        in_rounds(floors, rounds),
        "raw commit",
    )


async def committed_ms(writer: Writer, events: Sequence[Event]) -> float:
    """How long it takes until these are committed."""
    began = time.perf_counter()
    writer.add_events(events)
    await writer.committed()
    return (time.perf_counter() - began) * 1000


def writers(folder: Path, rounds: int, each: int) -> Figure:
    """Writers that each wait for their own commit, against one loop that commits so
    many rows at a time.
    """
    count = WRITERS * each
    rows = rows_of(job_events(rounds * count), folder)
    starts = itertools.count(step=count)
    raw = raw_connection(folder / "raw2.db")
    ledger = Ledger.open(folder / "many.db")

    def bare() -> float:
        first = next(starts)
        groups = [
            sliced(rows, start, start + WRITERS)
            for start in range(first, first + count, WRITERS)
        ]
        began = time.perf_counter()
        for group in groups:
            raw_insert(raw, group)
        return count / (time.perf_counter() - began)

    ours, floors = alternate(
        rounds, lambda: count / asyncio.run(write_at_once(ledger, each)), bare
    )
    ledger.close()
    return Figure(
        GROUP,
        f"{WRITERS} writers at once",
        ours,
        "jobs/s",
        0.6,
        floors,
        "bare group commits",
        least=True,
    )


async def write_at_once(ledger: Ledger, each: int) -> float:
    """Seconds in which so many writers have committed `each` events one by one."""
    writer = ledger.writer()
    writer.start()

    async def one(mine: Sequence[Event]) -> None:
        for event in mine:
            writer.add_events([event])
            await writer.committed()

    shares = [job_events(each) for _ in range(WRITERS)]
    gc.collect()
    began = time.perf_counter()
    await asyncio.gather(*map(one, shares))
    taken = time.perf_counter() - began
    await writer.close()
    return taken


def batch(folder: Path, rounds: int, count: int) -> Figure:
    """Jobs put at once, until committed; each time into an empty file."""
    events = job_events(count)
    rows = rows_of(events, folder)

    def ours() -> float:
        with scratch() as fresh:
            ledger = Ledger.open(fresh / "batch.db")
            taken = asyncio.run(write(ledger, events))
            ledger.close()
        return count / taken

    def bare() -> float:
        with scratch() as fresh:
            raw = raw_connection(fresh / "raw.db")
            gc.collect()
            taken = timed(lambda: raw_insert(raw, rows))
            raw.close()
        return count / taken

    values, floors = alternate(rounds, ours, bare)
    return Figure(
        GROUP,
        f"{count:,} jobs in one batch",
        values,
        "jobs/s",
        0.4,
        floors,
        "raw executemany",
        least=True,
    )


def beside_work(folder: Path, rounds: int, times: int) -> Figure:
    """The median commit of 500 rows, on a loop whose other task never rests; the floor
    commits them on a thread that does nothing else.
    """
    rows = rows_of(job_events(500 * rounds * times), folder)
    starts = itertools.count(step=500)
    raw = raw_connection(folder / "raw4.db")
    ledger = Ledger.open(folder / "busy.db")

    def bare() -> float:
        first = next(starts)
        group = sliced(rows, first, first + 500)
        return timed(lambda: raw_insert(raw, group)) * 1000

    ours, floors = alternate(
        rounds,
        lambda: asyncio.run(busy_commit_ms(ledger, times)),
        lambda: statistics.median(bare() for _ in range(times)),
    )
    ledger.close()
    return Figure(
        GROUP,
        "500 jobs committed beside a busy loop",
        ours,
        "ms",
        10,
        floors,
        "raw executemany beside nothing",
        absolute=True,
    )


async def busy_commit_ms(ledger: Ledger, times: int) -> float:
    """The median of so many commits of 500 jobs."""
    batches = [job_events(500) for _ in range(times)]
    writer = ledger.writer()
    writer.start()
    busy = asyncio.create_task(work_without_rest())
    taken: list[float] = []
    for events in batches:
        await asyncio.sleep(0.01)
        taken.append(await committed_ms(writer, events))
    busy.cancel()
    await writer.close()
    return statistics.median(taken)


async def work_without_rest() -> None:
    """Slices of about 0.2 ms of pure Python."""
    while True:
        sum(range(10_000))
        await asyncio.sleep(0)
