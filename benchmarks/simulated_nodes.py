"""The agents of many nodes in one process: they reach a real server as agents of other
hosts do, and start nothing.

`python -m benchmarks.simulated_nodes HOME COUNT GPUS` reads orders from its standard
input, one JSON array a line, and answers each with one line:

    ["join"]            every node joins
    ["look"]            what runs: attempts, GPUs
    ["begin", RATE]     end so many attempts a second
    ["finish"]          stop ending attempts; what was seen since `begin`
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.bench import percentile
from gpuyard.client.connection import running_server
from gpuyard.config.paths import Home
from gpuyard.domain import wire, wire_frames
from gpuyard.domain.reasons import Reason
from gpuyard.node.link import Heartbeat, ServerAddress, open_link
from gpuyard.node.outbox import never_started
from gpuyard.node.prefetch import PrefetchQueue

MB = 1e6
USAGE_S = 5.0
# How often attempts end while some do.
_TICK_S = 0.02
_SERIES = ("cpu", "memory", "gpu", "gpu_memory")


@dataclass
class Seen:
    """What was seen since ends began."""

    ends: int = 0
    sent: int = 0
    received: int = 0
    next_starts_s: list[float] = field(default_factory=list[float])
    events_s: list[float] = field(default_factory=list[float])

    def to_json(self) -> dict[str, float]:
        """Times in milliseconds, bytes in megabytes."""
        return {
            "ends": self.ends,
            "next_p50_ms": 1000 * percentile(self.next_starts_s or [0.0], 0.5),
            "next_p99_ms": 1000 * percentile(self.next_starts_s or [0.0], 0.99),
            "event_p99_ms": 1000 * percentile(self.events_s or [0.0], 0.99),
            "sent_mb": self.sent / MB,
            "received_mb": self.received / MB,
        }


class SimulatedNode:
    """One node: what its agent says, without a host."""

    def __init__(self, number: int, gpus: int, cluster: "Cluster") -> None:
        self.id = f"node_simulated{number}"
        self.running: dict[str, wire.StartAttempt] = {}
        self._cluster = cluster
        self._gpus = gpus
        self._prefetched = PrefetchQueue()
        self._seq = 0
        self._freed_at: list[float] = []
        self._writer: asyncio.StreamWriter | None = None
        self._beating: asyncio.Task[None] | None = None
        self.joined = asyncio.Event()

    def hello(self) -> wire.Hello:
        """96 cores, 1 TB of memory, and GPUs of 80 GB."""
        gpus = [
            wire.GpuStatus(
                uuid=f"GPU-{self.id}-{index}",
                index=index,
                name="NVIDIA H100 80GB HBM3",
                memory_mb=81_559,
                compute_capability="9.0",
                free_mb=81_000,
            )
            for index in range(self._gpus)
        ]
        return wire.Hello(self.id, self.id, "boot", 96, 1024.0, gpus=gpus)

    async def serve(self, address: ServerAddress) -> None:
        """Join and do what the server says, until the process ends."""
        async with open_link(address) as (reader, writer):
            self._writer = writer
            self._send(self.hello())
            beat: Heartbeat | None = None
            while True:
                header = await reader.readexactly(4)
                body = await reader.readexactly(wire_frames.frame_length(header))
                self._cluster.seen.received += len(header) + len(body)
                message = wire_frames.decode_to_agent(body)
                if isinstance(message, wire.Welcome):
                    beat = Heartbeat(writer, message.heartbeat_s)
                    self._beating = asyncio.create_task(beat.beat())
                    self.joined.set()
                else:
                    self._handle(message)
                if beat:
                    beat.received()

    def _handle(self, message: wire.ToAgent) -> None:
        match message:
            case wire.StartAttempt():
                if message.prefetched:
                    self._prefetched.add(message)
                else:
                    self._prefetched.drop(message.attempt_id)
                    self._begin(message)
            case wire.StopAttempt() if message.reason == Reason.REVOKED:
                if self._prefetched.withdraw(message.attempt_id):
                    self._report(
                        never_started(message.attempt_id, stopped=message.reason)
                    )
            case wire.StopAttempt():
                self.end(message.attempt_id, stopped=message.reason)
            case wire.Find():
                running = message.attempt_id in self.running
                state = "running" if running else "absent"
                self._send(wire.Found(message.request, message.attempt_id, state))
            case _:
                pass

    def _begin(self, start: wire.StartAttempt) -> None:
        if start.attempt_id in self.running:
            return
        self.running[start.attempt_id] = start
        self._cluster.note_start(self, start)
        self._report(wire.Started(start.attempt_id, time.time(), 1))
        if self._freed_at:
            waited_s = time.monotonic() - self._freed_at.pop(0)
            self._cluster.seen.next_starts_s.append(waited_s)

    def end(self, attempt_id: str, stopped: str = "") -> None:
        """The attempt ends; one that was prefetched takes its place."""
        start = self.running.pop(attempt_id, None)
        if start is None:
            return
        self._cluster.note_end(start)
        following = self._prefetched.pop_next(start)
        ended = wire.Ended(
            attempt_id,
            time.time(),
            time.time() - 1.0,
            exit_code=0,
            stopped=stopped,
            prefetched_next=following.attempt_id if following else "",
            ran_s=1.0,
        )
        self._report(ended)
        self._freed_at.append(time.monotonic())
        if following:
            self._begin(following)

    def tell_usage(self) -> None:
        """Report what each attempt uses, as agents do every few seconds."""
        now = time.time()
        for attempt_id in self.running:
            points = [
                wire.SeriesPoint(name, int(now), None, 50.0, now) for name in _SERIES
            ]
            self._report(wire.UsageSeen(attempt_id, points))

    def _report(self, body: Any) -> None:
        self._seq += 1
        self._send(wire.NumberedReport(self._seq, body))

    def _send(self, message: wire.FromAgent) -> None:
        assert self._writer
        frame = wire_frames.encode(message)
        self._cluster.seen.sent += len(frame)
        self._writer.write(frame)


class Cluster:
    """All nodes, and who has ended what when."""

    def __init__(self, home: Home, count: int, gpus: int) -> None:
        address = running_server(home)
        assert address, "no server runs"
        self._address = address
        self.seen = Seen()
        self.nodes = [SimulatedNode(number, gpus, self) for number in range(count)]
        self._places: dict[str, SimulatedNode] = {}
        self._ended_at: dict[str, float] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._ending: asyncio.Task[None] | None = None
        self._random = random.Random(7)

    def note_start(self, node: SimulatedNode, start: wire.StartAttempt) -> None:
        """An attempt has started."""
        self._places[start.attempt_id] = node

    def note_end(self, start: wire.StartAttempt) -> None:
        """An attempt has ended."""
        del self._places[start.attempt_id]
        self.seen.ends += 1
        self._ended_at[start.job_id] = time.monotonic()

    async def join(self) -> dict[str, float]:
        """Every node joins; the seconds until the last one is welcome."""
        began = time.monotonic()
        own = ServerAddress(Path(), self._address.url, self._address.token)
        for node in self.nodes:
            self._tasks.append(asyncio.create_task(node.serve(own)))
        joined = [asyncio.create_task(node.joined.wait()) for node in self.nodes]
        everyone = asyncio.gather(*joined)
        await asyncio.wait(
            [everyone, *self._tasks], return_when=asyncio.FIRST_COMPLETED
        )
        for task in self._tasks:
            if task.done():
                task.result()
        taken = time.monotonic() - began
        self._tasks.append(asyncio.create_task(self._tell_usage()))
        self._tasks.append(asyncio.create_task(self._hear_events()))
        return {"seconds": taken}

    def look(self) -> dict[str, float]:
        """What runs now."""
        running = [start for node in self.nodes for start in node.running.values()]
        gpus = sum(len(start.gpu_uuids) for start in running)
        return {"attempts": len(running), "gpus": gpus}

    def begin(self, ends_per_s: float) -> dict[str, float]:
        """End attempts at a pace, from now on."""
        self.seen = Seen()
        self._ending = asyncio.create_task(self._end_some(ends_per_s))
        return {}

    def finish(self) -> dict[str, float]:
        """End no more; what was seen."""
        if self._ending:
            self._ending.cancel()
        return self.seen.to_json()

    async def _end_some(self, ends_per_s: float) -> None:
        began = time.monotonic()
        while True:
            wanted = int((time.monotonic() - began) * ends_per_s) - self.seen.ends
            running = list(self._places)
            for attempt_id in self._random.sample(running, min(wanted, len(running))):
                if node := self._places.get(attempt_id):
                    node.end(attempt_id)
            await asyncio.sleep(_TICK_S)

    async def _tell_usage(self) -> None:
        """Each node in its turn, all of them within the interval."""
        while True:
            began = time.monotonic()
            for number, node in enumerate(self.nodes):
                node.tell_usage()
                due = began + USAGE_S * number / len(self.nodes)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            await asyncio.sleep(max(0.0, began + USAGE_S - time.monotonic()))

    async def _hear_events(self) -> None:
        """How long after an end the event stream tells it."""
        host, port = self._address.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = (
            "GET /api/v1/events HTTP/1.1\r\n"
            f"Host: {host}\r\n"
            f"Authorization: Bearer {self._address.token}\r\n"
            "Accept: text/event-stream\r\n\r\n"
        )
        writer.write(head.encode())
        async for line in reader:
            if line.startswith(b"data: ") and b'"job.completed"' in line:
                job_id = json.loads(line[6:])["job_id"]
                if (ended_at := self._ended_at.pop(job_id, None)) is not None:
                    self.seen.events_s.append(time.monotonic() - ended_at)


async def obey(home: Home, count: int, gpus: int, orders: Iterable[list[Any]]) -> None:
    """Make the nodes; then do what the orders say, and answer each."""
    cluster = Cluster(home, count, gpus)
    loop = asyncio.get_running_loop()
    reader = iter(orders)
    while order := await loop.run_in_executor(None, next, reader, None):
        match order:
            case ["join"]:
                answer = await cluster.join()
            case ["look"]:
                answer = cluster.look()
            case ["begin", ends_per_s]:
                answer = cluster.begin(ends_per_s)
            case ["finish"]:
                answer = cluster.finish()
            case _:
                raise SystemExit(f"simulated_nodes: there is no order {order}")
        print(json.dumps(answer), flush=True)


def main() -> None:
    """Serve until standard input ends."""
    home, count, gpus = sys.argv[1:]
    orders = (json.loads(line) for line in sys.stdin)
    uvloop.run(obey(Home(Path(home)), int(count), int(gpus), orders))


if __name__ == "__main__":
    main()
