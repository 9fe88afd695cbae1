"""The provider whose nodes are agents. Agents dial in; we place attempts on their devices and they push reports.

`AgentProvider` is the whole of it but for the door agents come in by; `local` opens a unix socket.
"""

import asyncio
import os
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, ClassVar

import structlog
from msgspec.structs import replace as replaced

from gpuyard.domain import wire
from gpuyard.domain.errors import GpuyardError, InsufficientResourcesError, JobNotFoundError, ProviderError
from gpuyard.domain.ids import new_id
from gpuyard.domain.jobconfig import CostInfo, GpuSpec, JobConfig, JobResult, JobStatus
from gpuyard.providers.base import GpuProviderInterface, Sink
from gpuyard.providers.link import LOG_PART, Link
from gpuyard.providers.placing import place
from gpuyard.providers.results import Known, Results

_LOG_WAIT_S = 10.0
_JOIN_S = 10.0
log = structlog.get_logger(__name__)


class AgentProvider(GpuProviderInterface):
    """Attempts on nodes that have an agent. `config`: `epoch`, `price_per_hour`, `currency`, `heartbeat_s`."""

    PROVIDER_NAME: ClassVar[str] = "agent"
    takes_claims = True

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._open: dict[Link, asyncio.Task[None]] = {}
        self._links: dict[str, Link] = {}
        self._hellos: dict[str, wire.Hello] = {}
        self._results = Results()
        self._sink: Sink | None = None
        self._heartbeat_s = float(config.get("heartbeat_s", 2.0))
        self._closed = False
        self.joined = asyncio.Event()

    async def start(self, sink: Sink) -> None:
        """Remember who hears the news."""
        self._sink = sink

    async def close(self) -> None:
        """Drop the links; agents and their jobs go on and dial in again when a server is back."""
        self._closed = True
        serving = list(self._open.values())
        for link in self._open:
            link.close()
        if serving:
            await asyncio.wait(serving)

    # --- the link ---

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One agent's connection, from its Hello to its end."""
        if self._closed:
            writer.close()
            return
        link = Link(reader, writer, self.PROVIDER_NAME)
        self._open[link] = asyncio.create_task(self._serve(link, writer), name="agent-link")
        try:
            await self._open[link]
        finally:
            del self._open[link]

    async def _serve(self, link: Link, writer: asyncio.StreamWriter) -> None:
        node_id, passing, watching = "", None, None
        try:
            _refuse_other_users(writer)
            async for message in link.messages():
                if isinstance(message, wire.Report) and node_id:
                    link.hold(message)
                elif isinstance(message, wire.Hello) and not node_id:
                    node_id = message.node_id
                    await self._join(message, link)
                    passing = asyncio.create_task(self._pass_on(node_id, link), name="pass-on-reports")
                elif isinstance(message, wire.Beat):
                    link.send(message)
                    watching = watching or asyncio.create_task(link.expect_beats(self._heartbeat_s))
        except (GpuyardError, ValueError, PermissionError) as error:
            log.warning("agent link ended", node=node_id, error=str(error))
        finally:
            link.close()
            if watching:
                watching.cancel()
            if passing:
                await passing
            await self._leave(node_id, link)

    async def _join(self, hello: wire.Hello, link: Link) -> None:
        assert self._sink is not None
        old = self._links.get(hello.node_id)
        if old:
            old.close()
        self._links[hello.node_id], self._hellos[hello.node_id] = link, hello
        for attempt in hello.attempts:
            self._results.listed(hello.node_id, attempt.attempt_id, attempt.state)
        welcome = await self._sink.node_joined(self.PROVIDER_NAME, hello)
        link.send(replaced(welcome, heartbeat_s=self._heartbeat_s))
        self.joined.set()

    async def _pass_on(self, node_id: str, link: Link) -> None:
        """Pass reports on, as many at once as came in during the last commit, and acknowledge them after theirs."""
        assert self._sink is not None
        try:
            # What a link had to say that has been replaced is said again on the new one, unless its agent was killed
            # before it noted it: then it no longer holds.
            while (batch := await link.next_reports()) and self._links.get(node_id) is link:
                await self._sink.reported(node_id, batch)
                for report in batch:  # only now: of what was not taken an agent that is killed may never speak again
                    self._learn(node_id, report.body)
                link.send(wire.Acknowledge(batch[-1].seq))
        except GpuyardError as error:
            # Nothing was acknowledged: the agent dials in again and repeats what it has to say.
            log.warning("reports not taken", node=node_id, error=str(error))
            link.close()
        except Exception:
            log.exception("reports not taken", node=node_id)
            link.close()

    async def _leave(self, node_id: str, link: Link) -> None:
        if self._links.get(node_id) is link:
            del self._links[node_id]
            if not self._links:
                self.joined.clear()
            if self._sink is not None:
                await self._sink.node_left(node_id)

    def _learn(self, node_id: str, body: Any) -> None:
        self._results.learn(node_id, body)
        if isinstance(body, wire.GpusSeen):
            self._hellos[node_id] = replaced(self._hellos[node_id], gpus=body.gpus, problem=body.problem)

    def _link(self, node_id: str) -> Link:
        link = self._links.get(node_id)
        if link is None:
            raise ProviderError(f"Node {node_id} has no agent connected.", self.PROVIDER_NAME, "NOT_CONNECTED")
        return link

    def _known_or_raise(self, job_id: str) -> Known:
        known = self._results.find(job_id)
        if known is None:
            raise JobNotFoundError(job_id, self.PROVIDER_NAME)
        return known

    # --- the seven calls ---

    async def submit_job(self, job_config: JobConfig) -> str:
        """Send Start to the node the placement names; when it names none, to the first that has enough."""
        attempt_id = job_config.attempt_id or new_id("attempt")
        known = self._results.find(attempt_id)
        if known and known.over:
            return attempt_id
        if known and not job_config.provider_options.get("node_id"):
            node_id, gpu_uuids = known.node_id, list(known.gpu_uuids)
        else:
            node_id, gpu_uuids = self._place(job_config)
        epoch = int(self.config.get("epoch", 0))
        self._link(node_id).send(_start_message(job_config, attempt_id, epoch, gpu_uuids))
        self._results.submitted(attempt_id, node_id, gpu_uuids)
        return attempt_id

    def _place(self, config: JobConfig) -> tuple[str, list[str]]:
        options, need = config.provider_options, config.gpu_spec
        if options.get("node_id"):
            return options["node_id"], list(options.get("gpu_uuids", ()))
        try:
            found = place(need, [self._hellos[node_id] for node_id in self._links], self._results.gpus_held())
        except ValueError as error:
            raise InsufficientResourcesError(f"{error}", self.PROVIDER_NAME, need) from None
        if found is None:
            raise InsufficientResourcesError("No connected node has what the job asks for.", self.PROVIDER_NAME, need)
        return found

    async def get_job_status(self, job_id: str) -> JobResult:
        """The last report's word, or the agent's own when there was none yet."""
        known = self._known_or_raise(job_id)
        if known.node_id not in self._links and not known.over:
            return replace(known.result, status=JobStatus.UNKNOWN)
        return known.result

    async def cancel_job(self, job_id: str) -> bool:
        """Send Stop; the end comes as a report."""
        known = self._known_or_raise(job_id)
        if known.over:
            return False
        await self.stop_attempt(known.node_id, job_id, "cancelled", checkpoint=False)
        return True

    async def get_job_logs(self, job_id: str, lines: int | None = None) -> str:
        """The whole log, or its last `lines`."""
        parts = [part async for part in self.stream_logs(job_id, lines=lines, follow=False)]
        return b"".join(parts).decode(errors="replace")

    async def get_cost_info(self, job_id: str) -> CostInfo:
        """Seconds run so far at the configured price."""
        result = self._known_or_raise(job_id).result
        seconds = (result.completed_at or time.time()) - result.started_at if result.started_at else 0.0
        price = Decimal(str(self.config.get("price_per_hour", 0)))
        total = price * Decimal(str(seconds)) / 3600
        return CostInfo(job_id, total, str(self.config.get("currency", "USD")), {"compute": total})

    async def list_available_gpus(self) -> list[GpuSpec]:
        """The usable GPUs of each connected node, one entry per kind."""
        found: list[GpuSpec] = []
        for node_id in self._links:
            hello = self._hellos[node_id]
            kinds = Counter((gpu.name, gpu.memory_mb) for gpu in hello.gpus if not gpu.problem)
            for (name, memory_mb), count in sorted(kinds.items()):
                found.append(GpuSpec(gpu_type=name, gpu_count=count, memory_gb=memory_mb / 1024,
                                     vcpus=hello.cpus, ram_gb=hello.memory_gb))  # fmt: skip
        return found

    async def health_check(self) -> dict[str, Any]:
        """Healthy with at least one agent connected."""
        if self._links:
            return {"status": "healthy", "nodes": len(self._links)}
        return {"status": "unhealthy", "message": "no agent is connected; `gpuyard doctor` says more"}

    # --- what this provider adds ---

    async def stream_logs(self, job_id: str, *, lines: int | None, follow: bool) -> AsyncIterator[bytes]:
        """The log as it is written; see StreamsLogs. The node is known, or the only one, or asked for."""
        known = self._results.find(job_id)
        node_id = known.node_id if known else await self._node_of(job_id)
        offset, tail = (0, 0) if lines is None else (-1, lines)
        if lines == 0 and not follow:
            return
        while True:
            wait_s = _LOG_WAIT_S if follow else 0.0
            part = await self._link(node_id).read_log(job_id, offset, tail, wait_s)
            if part.missing:
                raise JobNotFoundError(job_id, self.PROVIDER_NAME)
            if part.data:
                yield part.data
            offset, tail = part.offset + len(part.data), 0
            # A short part came to the log's end. What a running job writes from now on is not part of the answer.
            if part.end or (not follow and len(part.data) < LOG_PART):
                return

    async def _node_of(self, attempt_id: str) -> str:
        """The node that holds an attempt nothing was heard of yet; JobNotFoundError when none does."""
        if not self._links:
            await self._first_link()
        for node_id, link in list(self._links.items()):
            state = (await link.find(attempt_id)).state
            if state != "absent":
                self._results.listed(node_id, attempt_id, state)
                return node_id
        raise JobNotFoundError(attempt_id, self.PROVIDER_NAME)

    async def _first_link(self) -> None:
        """A server that has just started answers before its agents have dialled in."""
        try:
            await asyncio.wait_for(self.joined.wait(), _JOIN_S)
        except TimeoutError:
            raise ProviderError("No agent is connected.", self.PROVIDER_NAME, "NOT_CONNECTED") from None

    async def find_by_attempt(self, attempt_id: str) -> str | None:
        """Ask the agents."""
        try:
            await self._node_of(attempt_id)
        except JobNotFoundError:
            return None
        return attempt_id

    async def forget(self, node_id: str, attempt_ids: Sequence[str]) -> None:
        """Tell the agent, if it is there; it asks again with its next Hello otherwise."""
        link = self._links.get(node_id)
        if link and attempt_ids:
            link.send(wire.Forget(list(attempt_ids)))

    async def stop_attempt(self, node_id: str, attempt_id: str, reason: str, *, checkpoint: bool) -> None:
        """Send Stop."""
        self._link(node_id).send(wire.Stop(attempt_id, int(self.config.get("epoch", 0)), reason, checkpoint))

    async def release_gpus(self, node_id: str, gpu_uuids: Sequence[str]) -> None:
        """Send Release."""
        self._link(node_id).send(wire.Release(list(gpu_uuids)))

    def figures(self) -> Mapping[str, wire.Gpu]:
        """What the connected agents said last."""
        return {gpu.uuid: gpu for node_id in self._links for gpu in self._hellos[node_id].gpus}

    def reconnect(self) -> None:
        """Drop the links."""
        for link in list(self._links.values()):
            link.close()

    async def dismiss(self) -> None:
        """Send Leave to every agent."""
        for link in self._links.values():
            link.send(wire.Leave())


def _start_message(config: JobConfig, attempt_id: str, epoch: int, gpu_uuids: list[str]) -> wire.Start:
    """The agent's order, from the provider's form: what S2's fields cannot say travels in `provider_options`."""
    checkpoint, options = config.checkpoint, config.provider_options
    gpu = config.gpu_spec
    return wire.Start(
        attempt_id=attempt_id,
        token=config.token,
        epoch=epoch,
        job_id=str(options.get("job_id", attempt_id)),
        command=list(config.command),
        environment=dict(config.environment),
        workdir=options.get("workdir"),
        gpu_uuids=gpu_uuids,
        cpus=gpu.vcpus,
        memory_gb=gpu.ram_gb,
        timeout_s=config.timeout_minutes * 60 if config.timeout_minutes else None,
        max_silence_s=options.get("max_silence_s"),
        stdin=config.args_via_stdin,
        checkpoint_path=checkpoint.path,
        checkpoint_signal=checkpoint.signal,
        checkpoint_every_s=checkpoint.every_s,
        grace_s=config.grace_s,
        resume_sha256=options.get("resume_sha256"),
        resume_name=options.get("resume_name"),
        resume_directory=bool(options.get("resume_directory", False)),
        resume_args=list(checkpoint.resume_args),
        window=str(options.get("window", "")),
        ahead=bool(options.get("ahead", False)),
        shares_gpus=bool(options.get("shares_gpus", False)),
        workspace=options.get("workspace"),
    )


def _refuse_other_users(writer: asyncio.StreamWriter) -> None:
    """Over a unix socket the kernel tells who dials; only our own user's agent is let in."""
    sock = writer.get_extra_info("socket")
    if sock is None or sock.family != socket.AF_UNIX:
        return
    _pid, uid, _gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid not in (os.getuid(), 0):
        raise PermissionError(f"user {uid} may not link an agent")
