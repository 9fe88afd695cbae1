"""A whole provider in memory: hosts with agents that a test drives, and that outlive
the server as real ones do.
"""

import asyncio
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, ClassVar

from gpuyard.config.pools import PoolSettings
from gpuyard.domain import wire
from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.errors import (
    GpuyardError,
    JobNotFoundError,
    ProviderError,
    RefusedError,
)
from gpuyard.domain.frame_channel import FrameChannel
from gpuyard.domain.gangs import share_id
from gpuyard.domain.jobconfig import CostInfo, GpuSpec, JobResult, JobStatus
from gpuyard.node import port_stream
from gpuyard.providers.base import Sink
from gpuyard.providers.node_provider import NodeProvider
from gpuyard.providers.node_streams import NodeStream
from gpuyard.providers.pool_hands import PoolHands, PoolOwner

DIAL_AGAIN_S = 0.01


@dataclass
class FakeAttempt:
    """What a host knows of an attempt."""

    order: AttemptOrder
    live: bool = True
    started_at: float | None = None
    log: bytes = b""

    @property
    def gpus(self) -> set[str]:
        return set(self.order.gpu_uuids)


@dataclass
class FakeHost:
    """A machine with an agent. What it is told and has to say stays with it, whatever
    becomes of the server.

    `obedient`: it says at once that it started what it was told to, and ends at once
    what it was told to end. `deaf`: what it is told to start is lost on the way.
    `hold_start` and `hold_reply`: while there is such an event and it is not set, a
    submission waits before it reaches the host, or after. `hold_log`: so does whoever
    reads what an attempt has printed. `logs`: what those have printed that are over.
    """

    node_id: str = "node_1"
    cpus: float = 4.0
    memory_gb: float = 16.0
    gpu_count: int = 0
    boot_id: str = "boot-1"
    obedient: bool = True
    deaf: bool = False
    hold_start: asyncio.Event | None = None
    hold_log: asyncio.Event | None = None
    hold_reply: asyncio.Event | None = None
    refuse_with: GpuyardError | None = None
    refuse_times: int | None = None  # None: as long as `refuse_with` is set
    attempts: dict[str, FakeAttempt] = field(default_factory=dict)
    logs: dict[str, bytes] = field(default_factory=dict)
    outbox: list[wire.NumberedReport] = field(default_factory=list)
    runs: Counter[str] = field(default_factory=Counter)
    prefetched: dict[str, AttemptOrder] = field(default_factory=dict)
    stops: list[tuple[str, str]] = field(default_factory=list)
    said: int = 0

    @property
    def gpus(self) -> list[wire.GpuStatus]:
        return [
            wire.GpuStatus(f"GPU-{self.node_id}-{n}", n, "Tesla T4", 15360, "7.5")
            for n in range(self.gpu_count)
        ]

    def hello(self) -> wire.Hello:
        held = [
            wire.HeldAttempt(i, a.order.token, "running" if a.live else "ended")
            for i, a in self.attempts.items()
        ]
        return wire.Hello(
            self.node_id,
            self.node_id,
            self.boot_id,
            self.cpus,
            self.memory_gb,
            self.gpus,
            held,
        )

    def say(self, body: Any) -> None:
        self.said += 1
        self.outbox.append(wire.NumberedReport(self.said, body))

    def begin(self, order: AttemptOrder) -> None:
        """Start it, once; more than the host has is never given out."""
        attempt_id = order.attempt_id
        if self.deaf or self.runs[attempt_id]:
            return
        self.prefetched.pop(attempt_id, None)
        if order.prefetched:
            self.prefetched[attempt_id] = order
            return
        beside = [attempt for attempt in self.attempts.values() if attempt.live]
        attempt = self.attempts[attempt_id] = FakeAttempt(order)
        self.runs[attempt_id] += 1
        # A model server that sleeps has left its GPU; only the controller knows of it.
        scripts = [other for other in beside if not other.order.shares_gpus]
        assert not any(attempt.gpus & other.gpus for other in scripts), (
            "a GPU was given out twice"
        )
        assert (
            sum(a.order.gpu_spec.vcpus or 1.0 for a in (attempt, *beside))
            <= self.cpus + 1e-6
        ), "too many cores"
        if self.obedient:
            self.started(attempt_id)

    def started(self, attempt_id: str) -> None:
        attempt = self.attempts[attempt_id]
        attempt.started_at = time.time()
        self.say(
            wire.Started(attempt_id, attempt.started_at, 4711, {"memory": "cgroup"})
        )

    def ended(self, attempt_id: str, **fields: Any) -> None:
        attempt = self.attempts.get(attempt_id)
        self.prefetched.pop(attempt_id, None)
        if attempt:
            attempt.live = False
        began = attempt.started_at if attempt else None
        following = (
            self.following(attempt.order)
            if attempt and fields.get("stopped") != "preempted"
            else None
        )
        named = following.attempt_id if following else ""
        self.say(
            wire.Ended(attempt_id, time.time(), began, prefetched_next=named, **fields)
        )
        if following:
            self.begin(following)

    def following(self, ended: AttemptOrder) -> AttemptOrder | None:
        """The first that waits for such a place, as the one that has it."""
        for attempt_id, order in self.prefetched.items():
            if order.prefetch_group == ended.prefetch_group:
                del self.prefetched[attempt_id]
                return replace(order, prefetched=False, gpu_uuids=ended.gpu_uuids)
        return None

    def reboot(self) -> None:
        """Everything on it dies, and its agent's memory with it."""
        self.attempts.clear()
        self.outbox.clear()
        self.prefetched.clear()
        self.boot_id += "+"


class FakeProvider(NodeProvider):
    """The hosts of `config["hosts"]`.

    It also streams logs, finds attempts and owns its nodes.
    """

    PROVIDER_NAME: ClassVar[str] = "fake"
    accepts_prefetched: ClassVar[bool] = True

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.hosts: dict[str, FakeHost] = config["hosts"]
        self.hands: PoolHands | None = None
        self.discarded: list[tuple[str, str]] = []
        # Whether streams to ports were asked for that must be the attempt's own.
        self.own_ports: set[bool] = set()
        self.linked: set[str] = set()
        self._greeted: set[str] = set()
        self.released: list[tuple[str, list[str]]] = []
        self._away: set[str] = set()
        self._sink: Sink | None = None
        self._delivering = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, sink: Sink) -> None:
        self._sink = sink
        for node_id in self.hosts:
            await self.join(node_id)

    async def close(self) -> None:
        for node_id in self.hosts:
            await self.leave(node_id)

    # --- links ---

    async def join(self, node_id: str) -> None:
        """The host is there: its agent dials in and says again what was not
        acknowledged.
        """
        self._away.discard(node_id)
        self.linked.discard(node_id)
        self._greeted.discard(node_id)
        await self._dial(node_id)

    async def leave(self, node_id: str) -> None:
        """The host is away until it joins again."""
        self._away.add(node_id)
        await self._hang_up(node_id)

    def pool_hands(self, settings: PoolSettings, owner: PoolOwner) -> PoolHands | None:
        return self.hands

    async def release_gpus(self, node_id: str, gpu_uuids: Sequence[str]) -> None:
        self.released.append((node_id, list(gpu_uuids)))

    def figures(self) -> dict[str, list[wire.GpuStatus]]:
        return {}

    def reconnect(self) -> None:
        for node_id in self.linked:
            self._spawn(self._dial_anew(node_id))

    async def _dial_anew(self, node_id: str) -> None:
        await self._hang_up(node_id)
        await self._dial(node_id)

    async def _dial(self, node_id: str) -> None:
        assert self._sink is not None
        while node_id not in self.linked | self._away:
            self.linked.add(node_id)
            try:
                await self._sink.node_joined(
                    self.PROVIDER_NAME, self.hosts[node_id].hello()
                )
            except GpuyardError:
                await self._hang_up(node_id)
                await asyncio.sleep(DIAL_AGAIN_S)
            else:
                # It takes a moment until the host has the answer.
                await asyncio.sleep(0)
                if node_id in self.linked:
                    self._greeted.add(node_id)
        await self.deliver(node_id)

    async def _hang_up(self, node_id: str) -> None:
        assert self._sink is not None
        if node_id in self.linked:
            self.linked.discard(node_id)
            self._greeted.discard(node_id)
            self.hosts[node_id].prefetched.clear()
            await self._sink.node_left(node_id)

    async def deliver(self, node_id: str) -> None:
        """Hand over what the host has to say; a server that cannot take it loses the
        link, and is dialled again.
        """
        assert self._sink is not None
        host = self.hosts[node_id]
        async with self._delivering:
            batch = list(host.outbox)
            # As an agent, it says nothing before its Hello is answered.
            if not batch or node_id not in self.linked & self._greeted:
                return
            try:
                await self._sink.reported(node_id, batch)
            except GpuyardError:
                self._spawn(self._dial_anew(node_id))
                return
            host.outbox = [
                report for report in host.outbox if report.seq > batch[-1].seq
            ]

    def deliver_soon(self, node_id: str) -> None:
        self._spawn(self.deliver(node_id))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _host(self, node_id: str) -> FakeHost:
        if node_id not in self.linked:
            raise ProviderError(
                f"Node {node_id} has no agent connected.",
                self.PROVIDER_NAME,
                "NOT_CONNECTED",
            )
        return self.hosts[node_id]

    def _holder(self, attempt_id: str) -> tuple[FakeHost, FakeAttempt]:
        for host in self.hosts.values():
            if attempt_id in host.attempts:
                return host, host.attempts[attempt_id]
        raise JobNotFoundError(attempt_id, self.PROVIDER_NAME)

    # --- the seven calls ---

    async def submit_attempt(self, order: AttemptOrder) -> str:
        host = self._host(order.node_id)
        if host.hold_start:
            await host.hold_start.wait()
        if host.refuse_with and host.refuse_times != 0:
            if host.refuse_times:
                host.refuse_times -= 1
            raise host.refuse_with
        for share in order.shares:
            name = share_id(order.attempt_id, share.rank)
            part = replace(order, attempt_id=name, gpu_uuids=share.gpu_uuids)
            self._host(share.node_id).begin(part)
            self.deliver_soon(share.node_id)
        if not order.shares:
            host.begin(order)
            self.deliver_soon(host.node_id)
        if host.hold_reply:
            await host.hold_reply.wait()
        return f"fake/{order.attempt_id}"

    async def get_job_status(self, job_id: str) -> JobResult:
        _, attempt = self._holder(job_id.removeprefix("fake/"))
        return JobResult(
            job_id, JobStatus.RUNNING if attempt.live else JobStatus.COMPLETED
        )

    async def cancel_job(self, job_id: str) -> bool:
        host, attempt = self._holder(job_id.removeprefix("fake/"))
        await self.stop_attempt(
            host.node_id, job_id.removeprefix("fake/"), "cancelled", checkpoint=False
        )
        return attempt.live

    async def get_job_logs(self, job_id: str, lines: int | None = None) -> str:
        return self._holder(job_id.removeprefix("fake/"))[1].log.decode()

    async def get_cost_info(self, job_id: str) -> CostInfo:
        return CostInfo(job_id, Decimal(0), "USD")

    async def list_available_gpus(self) -> list[GpuSpec]:
        return [
            GpuSpec(gpu_type="T4", gpu_count=host.gpu_count)
            for host in self.hosts.values()
            if host.gpu_count
        ]

    async def health_check(self) -> dict[str, Any]:
        return {"status": "healthy" if self.linked else "unhealthy"}

    # --- what agents add ---

    async def stop_attempt(
        self, node_id: str, attempt_id: str, reason: str, *, checkpoint: bool
    ) -> None:
        host = self._host(node_id)
        host.stops.append((attempt_id, reason))
        if reason == "revoked" and attempt_id not in host.prefetched:
            return
        attempt = host.attempts.get(attempt_id)
        if attempt is None:
            host.ended(attempt_id, stopped=reason, message="never started")
            host.runs[attempt_id] += 0
        elif attempt.live and host.obedient:
            host.ended(attempt_id, signal=15, stopped=reason)
        self.deliver_soon(node_id)

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        raise NotImplementedError("its hosts are in memory")

    async def forget(self, node_id: str, attempt_ids: Sequence[str]) -> None:
        if node_id in self.linked:
            for attempt_id in attempt_ids:
                attempt = self.hosts[node_id].attempts.get(attempt_id)
                if attempt and not attempt.live:
                    del self.hosts[node_id].attempts[attempt_id]
                    self.hosts[node_id].logs[attempt_id] = attempt.log

    async def open_stream(
        self,
        node_id: str,
        attempt_id: str,
        port: int = 0,
        *,
        stdin: bool = False,
        own_port: bool = False,
    ) -> NodeStream:
        """To a port, carried as an agent does: what a host runs listens here."""
        self._host(node_id)
        self.own_ports.add(own_port)
        try:
            connection = await port_stream.connect(port)
        except OSError as error:
            raise RefusedError(f"nothing listens at {port}: {error}") from None
        ours, theirs = socket.socketpair()
        agent = await asyncio.open_unix_connection(sock=theirs)
        stream = NodeStream(*await asyncio.open_unix_connection(sock=ours))
        self._spawn(_carry(connection, agent, stream))
        return stream

    async def discard(self, node_id: str, attempt_ids: Sequence[str]) -> None:
        self.discarded += [(node_id, attempt_id) for attempt_id in attempt_ids]

    async def dismiss(self) -> None:
        await self.close()

    async def stream_logs(
        self, job_id: str, *, lines: int | None, follow: bool
    ) -> AsyncIterator[bytes]:
        attempt_id = job_id.removeprefix("fake/")
        for node_id, host in self.hosts.items():
            if attempt_id not in host.attempts and attempt_id not in host.logs:
                continue
            if host.hold_log:
                await host.hold_log.wait()
            attempt = self._host(node_id).attempts.get(attempt_id)
            yield attempt.log if attempt else host.logs[attempt_id]
            return
        raise JobNotFoundError(job_id, self.PROVIDER_NAME)

    async def find_by_attempt(self, attempt_id: str) -> str | None:
        return (
            f"fake/{attempt_id}"
            if any(attempt_id in host.attempts for host in self.hosts.values())
            else None
        )

    async def has_attempt(self, node_id: str, attempt_id: str) -> bool:
        return attempt_id in self._host(node_id).attempts


async def _carry(
    connection: port_stream.Connection,
    agent: port_stream.Connection,
    stream: NodeStream,
) -> None:
    """Both ends of a stream, until one of them has gone."""
    with closing(agent[1]), closing(stream.writer):
        await port_stream.carry(connection, FrameChannel(*agent), stream.closed)
