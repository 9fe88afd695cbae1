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
from benchmarks.figures import Figure
from gpuyard.client.connection import Address
from gpuyard.ledger.ledger import Ledger

GROUP = "http"
CONNECTIONS = 32


def measure(scale: float) -> Iterator[Figure]:
    """All of it on one server whose node is taken, so that nothing but taking in jobs
    is measured.
    """
    with serving() as (instance, web):
        block(instance, web)
        count = scaled(10_000, scale, 100)
        yield from bodies(web, instance.address(), count)
        yield from singles(instance.address(), scaled(2000, scale, 2 * CONNECTIONS))


def bodies(web: Web, address: Address, count: int) -> Iterator[Figure]:
    """Many jobs in one request, of few shapes and of as many shapes as jobs, and what
    another request feels of it.
    """
    for distinct, target in ((False, 3), (True, 6)):
        body = json.dumps(
            [spec_body(number, distinct=distinct) for number in range(count)]
        ).encode()
        floor = ledgers_own(count, distinct=distinct)
        with Prober(address) as prober:
            taken = timed(lambda b=body: web.send("POST", "/api/v1/jobs", b))
        kind = "all distinct" if distinct else "repeated shapes"
        yield Figure(
            GROUP,
            f"{count:,} jobs in one request, {kind}",
            taken * 1000,
            "ms",
            target,
            floor * 1000,
            "the ledger alone",
        )
        yield Figure(
            GROUP,
            f"longest stall meanwhile, {kind}",
            max(prober.taken) * 1000,
            "ms",
            25,
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


def singles(address: Address, count: int) -> Iterator[Figure]:
    """Single submissions over kept connections, against the lesser of two floors.

    One is the same server with its ledger told to store no job; the other what the disk
    could do at best.
    """
    load = Load(address, _requests(address, count))
    rate = count / asyncio.run(load.run())
    dry = _dry_rate(count)
    with scratch() as folder:
        synced = CONNECTIONS / (2 * fdatasync_ms(folder) / 1000)
    floor, name = min(
        (dry, "the same, nothing stored"), (synced, "32 / (2 × fdatasync)")
    )
    yield Figure(
        GROUP,
        f"single submits, {CONNECTIONS} connections",
        rate,
        "jobs/s",
        0.6,
        floor,
        name,
        least=True,
    )
    yield Figure(
        GROUP, f"the same, p99 of {count:,}", percentile(load.taken, 0.99) * 1000, "ms"
    )


def _dry_rate(count: int) -> float:
    with serving("benchmarks.dry_server") as (instance, web):
        block(instance, web)
        return count / asyncio.run(
            Load(instance.address(), _requests(instance.address(), count)).run()
        )


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
    taken: list[float] = field(default_factory=list)

    async def run(self) -> float:
        """Seconds for all; `taken` keeps each request's own."""
        began = time.perf_counter()
        await asyncio.gather(
            *(
                self._connection(self.requests[n::CONNECTIONS])
                for n in range(CONNECTIONS)
            )
        )
        return time.perf_counter() - began

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
