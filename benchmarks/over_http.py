"""Submissions over HTTP: many jobs in one request against the ledger's own time, single
ones over 32 connections.
"""

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.bench import (
    Web,
    block,
    fdatasync_ms,
    job_events,
    percentile,
    scaled,
    scratch,
    serving,
    spec_body,
    timed,
    write,
)
from benchmarks.figures import Figure, alternate
from gpuyard.client.connection import Address
from gpuyard.ledger.ledger import Ledger

GROUP = "http"
CONNECTIONS = 32


def measure(scale: float) -> Iterator[Figure]:
    """All of it on one server whose node is taken, so that nothing but taking in jobs
    is measured.
    """
    rounds = scaled(3, scale)
    count = scaled(10_000, scale, 100)
    with serving() as (instance, web):
        block(instance, web)
        address = instance.address()
        for distinct, target in ((False, 3), (True, 6)):
            work = Bodies(web, address, count, distinct)
            yield work.submission(rounds, target)
            yield work.longest_stall(rounds)
        for distinct in (False, True):
            Bodies(web, address, count, distinct).submit()
        yield from singles(address, rounds, scaled(2000, scale, 2 * CONNECTIONS))


@dataclass
class Bodies:
    """Many jobs in one request, of few shapes or of as many shapes as jobs."""

    web: Web
    address: Address
    count: int
    distinct: bool

    def __post_init__(self) -> None:
        kind = "all distinct" if self.distinct else "repeated shapes"
        self.name = f"{self.count:,} jobs in one request, {kind}"
        bodies = [spec_body(n, distinct=self.distinct) for n in range(self.count)]
        self._body = json.dumps(bodies).encode()

    def submit(self) -> float:
        """The seconds of the request; the jobs stay in the queue."""
        return timed(lambda: self.web.send("POST", "/api/v1/jobs", self._body))

    def submission(self, rounds: int, target: float) -> Figure:
        """The request, with nobody else asking anything."""

        def ours() -> float:
            taken = self.submit()
            self.web.cancel_queued()
            return taken * 1000

        values, floors = alternate(
            rounds,
            ours,
            lambda: ledgers_own(self.count, distinct=self.distinct) * 1000,
        )
        return Figure(
            GROUP, self.name, values, "ms", target, floors, "the ledger alone"
        )

    def longest_stall(self, rounds: int) -> Figure:
        """What another client feels meanwhile, and what it feels for as long when there
        is nothing to do.
        """
        taken: list[float] = []

        def ours() -> float:
            with Prober(self.address) as prober:
                taken.append(self.submit())
            self.web.cancel_queued()
            return max(prober.taken) * 1000

        def floor() -> float:
            with Prober(self.address) as prober:
                time.sleep(taken[-1])
            return max(prober.taken) * 1000

        values, floors = alternate(rounds, ours, floor)
        return Figure(
            GROUP,
            f"longest stall of others meanwhile: {self.name}",
            values,
            "ms",
            25,
            floors,
            "with nothing to do",
            absolute=True,
        )


def ledgers_own(count: int, *, distinct: bool) -> float:
    """Seconds in which the ledger writes the same jobs."""
    events = job_events(count, distinct=distinct)
    with scratch() as folder:
        ledger = Ledger.open(folder / "own.db")
        taken = asyncio.run(write(ledger, events))
        ledger.close()
    return taken


class Prober:
    """A thread that asks for something small again and again; `taken` are its
    seconds.
    """

    def __init__(self, address: Address) -> None:
        self._web = Web(address)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.taken: list[float] = []

    def __enter__(self) -> "Prober":
        self.taken.append(timed(lambda: self._web.send("GET", "/healthz")))
        self.taken.clear()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._web.close()

    def _run(self) -> None:
        while not self._over.is_set() or not self.taken:
            self.taken.append(timed(lambda: self._web.send("GET", "/healthz")))
            time.sleep(0.001)


# --- single submissions ---


def singles(address: Address, rounds: int, count: int) -> Iterator[Figure]:
    """Single submissions over kept connections, against the lesser of two floors.

    One is the same server with its ledger told to store no job; the other what the disk
    could do at best.
    """
    with serving("benchmarks.dry_server") as (dry, web):
        block(dry, web)
        ours, floors = alternate(
            rounds,
            lambda: load(address, count),
            lambda: (load(dry.address(), count), synced_rate()),
        )
    yield Figure(
        GROUP,
        f"single submits, {CONNECTIONS} connections",
        [one.rate for one in ours],
        "jobs/s",
        0.6,
        [min(one.rate, synced) for one, synced in floors],
        "the lesser of the same with nothing stored and 32 / (2 × fdatasync)",
        least=True,
    )
    yield Figure(
        GROUP,
        f"the same, p99 of {count:,}",
        [percentile(one.taken, 0.99) * 1000 for one in ours],
        "ms",
        None,
        [percentile(one.taken, 0.99) * 1000 for one, _ in floors],
        "the same, nothing stored",
    )


def load(address: Address, count: int) -> "Load":
    """So many single submissions, done."""
    work = Load(address, _requests(address, count))
    asyncio.run(work.run())
    return work


def synced_rate() -> float:
    """How many submissions a second the disk could sync."""
    with scratch() as folder:
        return CONNECTIONS / (2 * fdatasync_ms(folder) / 1000)


def _requests(address: Address, count: int) -> list[bytes]:
    return [
        _request(address, spec_body(number, distinct=False)) for number in range(count)
    ]


def _request(address: Address, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = (
        "POST /api/v1/jobs HTTP/1.1\r\nHost: instance\r\nAuthorization: Bearer"
        f" {address.token}\r\nContent-Type: application/json\r\nContent-Length:"
        f" {len(content)}\r\n\r\n"
    )
    return head.encode() + content


@dataclass
class Load:
    """Prepared requests, dealt to connections that each wait for an answer before they
    send the next one.
    """

    address: Address
    requests: Sequence[bytes]
    taken: list[float] = field(default_factory=list[float])
    """The seconds of each request."""
    rate: float = 0.0
    """Requests a second."""

    async def run(self) -> None:
        """Send all of them."""
        began = time.perf_counter()
        await asyncio.gather(
            *(
                self._connection(self.requests[n::CONNECTIONS])
                for n in range(CONNECTIONS)
            )
        )
        self.rate = len(self.requests) / (time.perf_counter() - began)

    async def _connection(self, requests: Sequence[bytes]) -> None:
        host, port = self.address.url.removeprefix("http://").rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        for request in requests:
            began = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 201 " not in head[:16]:
                raise RuntimeError(f"a submission was answered {head[:200]!r}")
            length = int(
                head.lower().split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0]
            )
            await reader.readexactly(length)
            self.taken.append(time.perf_counter() - began)
        writer.close()
