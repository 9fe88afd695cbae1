"""Durable writes, the ledger against bare sqlite3 that writes the same rows with the
same pragmas.
"""

import asyncio
import gc
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
from benchmarks.figures import Figure
from gpuyard.domain.events import Event
from gpuyard.ledger.ledger import Ledger

GROUP = "ledger"
WRITERS = 128


def measure(scale: float) -> Iterator[Figure]:
    """One acknowledgement, many writers, one large batch, a commit beside a busy
    loop.
    """
    with scratch() as folder:
        yield acknowledgement(folder, scaled(400, scale, 20))
        yield writers(folder, scaled(40, scale, 2))
        yield batch(folder, scaled(100_000, scale, 100))
        yield beside_work(folder, scaled(50, scale, 3))


def acknowledgement(folder: Path, count: int) -> Figure:
    """One client that waits for each commit; both sides take turns, so that they meet
    the same machine.
    """
    events = job_events(2 * count)
    rows = rows_of(events[count:], folder)
    raw = raw_connection(folder / "raw1.db")
    bare: list[float] = []

    async def ours() -> list[float]:
        ledger = Ledger.open(folder / "one.db")
        writer = ledger.writer()
        writer.start()
        taken: list[float] = []
        for number, event in enumerate(events[:count]):
            began = time.perf_counter()
            writer.add_events([event])
            await writer.committed()
            taken.append(time.perf_counter() - began)
            bare.append(timed(lambda n=number: raw_insert(raw, sliced(rows, n, n + 1))))
        await writer.close()
        ledger.close()
        return taken

    value = statistics.median(asyncio.run(ours())) * 1000
    return Figure(
        GROUP,
        "one client's acknowledgement",
        value,
        "ms",
        1.5,
        statistics.median(bare) * 1000,
        "raw commit",
    )


def writers(folder: Path, each: int) -> Figure:
    """Writers that each wait for their own commit, against one loop that commits so
    many rows at a time.
    """
    events = job_events(WRITERS * each)
    rows = rows_of(events, folder)
    raw = raw_connection(folder / "raw2.db")

    def bare() -> None:
        for start in range(0, len(events), WRITERS):
            raw_insert(raw, sliced(rows, start, start + WRITERS))

    async def ours() -> float:
        ledger = Ledger.open(folder / "many.db")
        writer = ledger.writer()
        writer.start()

        async def one(mine: Sequence[Event]) -> None:
            for event in mine:
                writer.add_events([event])
                await writer.committed()

        gc.collect()
        began = time.perf_counter()
        await asyncio.gather(
            *(one(events[number::WRITERS]) for number in range(WRITERS))
        )
        taken = time.perf_counter() - began
        await writer.close()
        ledger.close()
        return taken

    value = len(events) / asyncio.run(ours())
    floor = len(events) / timed(bare)
    return Figure(
        GROUP,
        f"{WRITERS} writers at once",
        value,
        "jobs/s",
        0.6,
        floor,
        "bare group commits",
        least=True,
    )


def batch(folder: Path, count: int) -> Figure:
    """Jobs put at once, until committed."""
    events = job_events(count)
    rows = rows_of(events, folder)
    raw = raw_connection(folder / "raw3.db")
    gc.collect()
    floor = count / timed(lambda: raw_insert(raw, rows))
    raw.close()
    ledger = Ledger.open(folder / "batch.db")
    value = count / asyncio.run(write(ledger, events))
    ledger.close()
    return Figure(
        GROUP,
        f"{count:,} jobs in one batch",
        value,
        "jobs/s",
        0.4,
        floor,
        "raw executemany",
        least=True,
    )


def beside_work(folder: Path, times: int) -> Figure:
    """The median commit of 500 rows, on a loop whose other task never rests."""
    events = job_events(500 * times)

    async def ours() -> list[float]:
        ledger = Ledger.open(folder / "busy.db")
        writer = ledger.writer()
        writer.start()
        busy = asyncio.create_task(work_without_rest())
        taken: list[float] = []
        for start in range(0, len(events), 500):
            await asyncio.sleep(0.01)
            began = time.perf_counter()
            writer.add_events(events[start : start + 500])
            await writer.committed()
            taken.append(time.perf_counter() - began)
        busy.cancel()
        await writer.close()
        ledger.close()
        return taken

    value = statistics.median(asyncio.run(ours())) * 1000
    return Figure(GROUP, "500 jobs committed beside a busy loop", value, "ms", 10)


async def work_without_rest() -> None:
    """Slices of about 0.2 ms of pure Python."""
    while True:
        sum(range(10_000))
        await asyncio.sleep(0)
