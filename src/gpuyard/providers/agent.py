"""The provider whose nodes have agents. Agents connect, start attempts on their GPUs
and send reports.

`AgentProvider` does everything except accept connections; `local` does that on a unix
socket.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, ClassVar

import structlog
from msgspec.structs import replace as replaced

from gpuyard.config.sockets import refuse_other_users
from gpuyard.domain import wire
from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.contents import Stores
from gpuyard.domain.errors import (
    GpuyardError,
    InsufficientResourcesError,
    JobNotFoundError,
    ProviderError,
    RefusedError,
)
from gpuyard.domain.jobconfig import CostInfo, GpuSpec, JobResult, JobStatus
from gpuyard.domain.reasons import Reason
from gpuyard.domain.separation import Separation
from gpuyard.providers.base import (
    LogPiece,
    NodeProvider,
    Sink,
    cost_of,
    log_text,
    refuse_container,
    with_logs,
)
from gpuyard.providers.content_sender import refuse_older_agent, send_contents
from gpuyard.providers.link import LOG_PART, Link
from gpuyard.providers.node_streams import NodeStream, NodeStreams
from gpuyard.providers.placing import place
from gpuyard.providers.results import AttemptResults, KnownAttempt

# How long an agent holds a request for a log that has nothing new.
_LOG_WAIT_S = 10.0
# How long a call waits for the first agent to connect.
_CONNECT_S = 10.0
log = structlog.get_logger(__name__)


class AgentProvider(NodeProvider):
    """Attempts on nodes that have an agent.

    `config`: `epoch`, `price_per_hour`, `currency`, `heartbeat_s`.
    """

    PROVIDER_NAME: ClassVar[str] = "agent"
    accepts_prefetched: ClassVar[bool] = True

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._serving: dict[Link, asyncio.Task[None]] = {}
        self._links: dict[str, Link] = {}
        self._hellos: dict[str, wire.Hello] = {}
        # Whether a node's agent is that of this server's home, by node.
        self._at_home: dict[str, bool] = {}
        self._results = AttemptResults()
        self._streams = NodeStreams(self.PROVIDER_NAME)
        self._sink: Sink | None = None
        self._stores: Stores | None = None
        self._heartbeat_s = float(config.get("heartbeat_s", 2.0))
        self._closed = False
        self.has_agents = asyncio.Event()

    async def start(self, sink: Sink) -> None:
        """See GpuProviderInterface."""
        self._sink = sink

    def hand_out(self, stores: Stores) -> None:
        """See NodeProvider."""
        self._stores = stores

    async def close(self) -> None:
        """Drop the links. Agents and jobs go on; agents connect to the next server."""
        self._closed = True
        self._streams.close()
        tasks = list(self._serving.values())
        for link in self._serving:
            link.close()
        if tasks:
            await asyncio.wait(tasks)

    # --- the link ---

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve one agent's connection, from its Hello to its end."""
        if self._closed:
            writer.close()
            return
        link = Link(reader, writer, self.PROVIDER_NAME)
        serving = self._serve(link, reader, writer)
        task = asyncio.create_task(serving, name="agent-link")
        self._serving[link] = task
        try:
            await task
        finally:
            del self._serving[link]

    async def _serve(
        self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        node_id = ""
        reporting = None
        watching = None
        try:
            _refuse_other_users(writer)
            async for message in link.messages():
                if isinstance(message, wire.NumberedReport) and node_id:
                    link.add_report(message)
                elif isinstance(message, wire.Hello) and not node_id:
                    node_id = message.node_id
                    await self._join(message, link)
                    reporting = asyncio.create_task(
                        self._forward_reports(node_id, link), name="forward-reports"
                    )
                elif isinstance(message, wire.JoinStream) and not node_id:
                    await self._streams.join(message, reader, writer)
                    break
                elif isinstance(message, wire.FetchContents) and not node_id:
                    if self._stores:
                        await send_contents(self._stores, message, writer)
                    break
                elif isinstance(message, wire.Beat):
                    link.send(message)
                    if watching is None:
                        watching = asyncio.create_task(
                            link.expect_beats(self._heartbeat_s)
                        )
        except (GpuyardError, ValueError, OSError) as error:
            log.warning("agent link ended", node=node_id, error=str(error))
        finally:
            link.close()
            if watching:
                watching.cancel()
            if reporting:
                await reporting
            await self._leave(node_id, link)

    async def _join(self, hello: wire.Hello, link: Link) -> None:
        assert self._sink is not None
        old = self._links.get(hello.node_id)
        if old:
            old.close()
        self._links[hello.node_id] = link
        self._hellos[hello.node_id] = hello
        self._at_home[hello.node_id] = self.shares_home(hello.node_id)
        for attempt in hello.attempts:
            self._results.add_listed(hello.node_id, attempt.attempt_id, attempt.state)
        welcome = await self._sink.node_joined(self.PROVIDER_NAME, hello)
        link.send(replaced(welcome, heartbeat_s=self._heartbeat_s))
        self.has_agents.set()

    async def _forward_reports(self, node_id: str, link: Link) -> None:
        """Forward reports in batches, and acknowledge each batch after its commit.

        A batch has all reports that arrived during the last commit.
        """
        assert self._sink is not None
        try:
            while batch := await link.next_reports():
                if self._links.get(node_id) is not link:
                    # The agent repeats its reports on its new link. If it was killed
                    # before it stored them, they no longer hold.
                    return
                await self._sink.reported(node_id, batch)
                # Not before the commit: a killed agent may never repeat a report that
                # was not committed.
                self._update(node_id, [report.body for report in batch])
                link.send(wire.Acknowledge(batch[-1].seq))
        except GpuyardError as error:
            # Nothing was acknowledged: the agent connects again and repeats it.
            if not link.closed:
                log.warning("reports not taken", node=node_id, error=str(error))
            link.close()
        except Exception:
            log.exception("reports not taken", node=node_id)
            link.close()

    async def _leave(self, node_id: str, link: Link) -> None:
        if self._links.get(node_id) is link:
            del self._links[node_id]
            if not self._links:
                self.has_agents.clear()
            if self._sink is not None:
                await self._sink.node_left(node_id)

    def _update(self, node_id: str, bodies: Sequence[Any]) -> None:
        self._results.update(node_id, bodies)
        for body in bodies:
            if isinstance(body, wire.GpusSeen):
                self._hellos[node_id] = replaced(
                    self._hellos[node_id], gpus=body.gpus, problem=body.problem
                )

    def _link(self, node_id: str) -> Link:
        link = self._links.get(node_id)
        if link is None:
            raise ProviderError(
                f"Node {node_id} has no agent connected.",
                self.PROVIDER_NAME,
                "NOT_CONNECTED",
            )
        return link

    def _find(self, job_id: str) -> KnownAttempt:
        """JobNotFoundError for an unknown attempt."""
        known = self._results.find(job_id)
        if known is None:
            raise JobNotFoundError(job_id, self.PROVIDER_NAME)
        return known

    # --- S2's seven calls ---

    async def submit_attempt(self, order: AttemptOrder) -> str:
        """Send Start to the order's node, or else to the first node that has enough."""
        refuse_container(order, self.PROVIDER_NAME)
        known = self._results.find(order.attempt_id)
        if known and known.is_over:
            return order.attempt_id
        if known and not order.node_id:
            node_id = known.node_id
            gpu_uuids = list(known.gpu_uuids)
        else:
            node_id, gpu_uuids = self._place(order)
        epoch = int(self.config.get("epoch", 0))
        link = self._link(node_id)
        if not self._at_home[node_id]:
            refuse_older_agent(order, self._hellos[node_id], self.PROVIDER_NAME)
        link.send(_start_message(order, epoch, gpu_uuids))
        self._results.add_submitted(order.attempt_id, node_id, gpu_uuids)
        return order.attempt_id

    def shares_home(self, node_id: str) -> bool:
        """Whether the node's agent is that of this server's home."""
        return False

    def _place(self, order: AttemptOrder) -> tuple[str, list[str]]:
        if order.node_id:
            return order.node_id, list(order.gpu_uuids)
        need = order.gpu_spec
        connected = [self._hellos[node_id] for node_id in self._links]
        try:
            found = place(need, connected, self._results.gpus_in_use())
        except ValueError as error:
            message = str(error)
            raise InsufficientResourcesError(
                message, self.PROVIDER_NAME, need
            ) from None
        if found is None:
            message = "No connected node has what the job asks for."
            raise InsufficientResourcesError(message, self.PROVIDER_NAME, need)
        return found

    async def get_job_status(self, job_id: str) -> JobResult:
        """The state after the last report; UNKNOWN while its node is not connected."""
        known = self._find(job_id)
        if known.node_id not in self._links and not known.is_over:
            return replace(known.result, status=JobStatus.UNKNOWN)
        if not known.is_over:
            return known.result
        return await with_logs(self, known.result)

    async def cancel_job(self, job_id: str) -> bool:
        """Send Stop; the agent reports the end later."""
        known = self._find(job_id)
        if known.is_over:
            return False
        await self.stop_attempt(
            known.node_id, job_id, Reason.CANCELLED, checkpoint=False
        )
        return True

    async def get_job_logs(self, job_id: str, lines: int | None = None) -> str:
        """The whole log, or its last `lines`."""
        return await log_text(self.stream_logs(job_id, lines=lines, follow=False))

    async def get_cost_info(self, job_id: str) -> CostInfo:
        """The seconds run so far, at the configured price."""
        result = self._find(job_id).result
        price = Decimal(str(self.config.get("price_per_hour", 0)))
        return cost_of(result, price, str(self.config.get("currency", "USD")))

    async def list_available_gpus(self) -> list[GpuSpec]:
        """The usable GPUs of each connected node, one entry per kind."""
        found: list[GpuSpec] = []
        for node_id in self._links:
            hello = self._hellos[node_id]
            usable = [gpu for gpu in hello.gpus if not gpu.problem]
            counts = Counter((gpu.name, gpu.memory_mb) for gpu in usable)
            for (name, memory_mb), count in sorted(counts.items()):
                spec = GpuSpec(
                    gpu_type=name,
                    gpu_count=count,
                    memory_gb=memory_mb / 1024,
                    vcpus=hello.cpus,
                    ram_gb=hello.memory_gb,
                )
                found.append(spec)
        return found

    async def health_check(self) -> dict[str, Any]:
        """Healthy while at least one agent is connected."""
        if self._links:
            return {"status": "healthy", "nodes": len(self._links)}
        return {
            "status": "unhealthy",
            "message": "no agent is connected; `gpuyard doctor` says more",
        }

    # --- output ---

    async def stream_logs(
        self, job_id: str, *, lines: int | None, follow: bool
    ) -> AsyncIterator[bytes]:
        """See GpuProviderInterface."""
        pieces = self.stream_log_pieces(job_id, offset=0, lines=lines, follow=follow)
        async for piece in pieces:
            yield piece.data

    async def stream_log_pieces(
        self, job_id: str, *, offset: int, lines: int | None, follow: bool
    ) -> AsyncIterator[LogPiece]:
        """See GpuProviderInterface."""
        known = self._results.find(job_id)
        node_id = known.node_id if known else await self._node_of(job_id)
        if lines == 0 and not follow:
            return
        tail = lines or 0
        if lines is not None:
            offset = -1
        while True:
            wait_s = _LOG_WAIT_S if follow else 0.0
            part = await self._link(node_id).read_log(job_id, offset, tail, wait_s)
            if part.missing:
                raise JobNotFoundError(job_id, self.PROVIDER_NAME)
            if part.data:
                yield LogPiece(part.offset, part.data)
            offset = part.offset + len(part.data)
            tail = 0
            # A part shorter than asked for ends at the log's current end.
            is_current_end = len(part.data) < LOG_PART
            if part.end or (is_current_end and not follow):
                return

    async def _node_of(self, attempt_id: str) -> str:
        """Ask the agents which node has an attempt; JobNotFoundError when none has."""
        if not self._links:
            await self._wait_for_agent()
        for node_id, link in list(self._links.items()):
            state = (await link.find(attempt_id)).state
            if state != "absent":
                self._results.add_listed(node_id, attempt_id, state)
                return node_id
        raise JobNotFoundError(attempt_id, self.PROVIDER_NAME)

    async def _wait_for_agent(self) -> None:
        """A server that has just started gets requests before its agents connect."""
        try:
            await asyncio.wait_for(self.has_agents.wait(), _CONNECT_S)
        except TimeoutError:
            raise ProviderError(
                "No agent is connected.", self.PROVIDER_NAME, "NOT_CONNECTED"
            ) from None

    async def open_stream(
        self, node_id: str, attempt_id: str, port: int = 0, *, stdin: bool = False
    ) -> NodeStream:
        """See NodeProvider."""
        if not self._links:
            await self._wait_for_agent()
        link = self._link(node_id)
        hello = self._hellos[node_id]
        if not (hello.stdin_streams if stdin else hello.streams):
            lacks = "can neither run commands beside jobs nor forward ports"
            raise RefusedError(
                f"The agent on {hello.name} is of version {hello.version or 'unknown'},"
                f" which {'passes no input on to jobs' if stdin else lacks}.",
                "Restart it when its jobs have ended: `gpuyard down`, `gpuyard up`.",
            )
        return await self._streams.open(link, attempt_id, port, stdin=stdin)

    # --- agents ---

    async def find_by_attempt(self, attempt_id: str) -> str | None:
        """Ask the agents; their reference is the attempt's id."""
        try:
            await self._node_of(attempt_id)
        except JobNotFoundError:
            return None
        return attempt_id

    async def forget(self, node_id: str, attempt_ids: Sequence[str]) -> None:
        """Send Forget, if the agent is connected.

        Otherwise its next Hello lists the attempts again.
        """
        link = self._links.get(node_id)
        if link and attempt_ids:
            link.send(wire.Forget(list(attempt_ids)))

    async def discard(self, node_id: str, attempt_ids: Sequence[str]) -> None:
        """Send Forget with the output, if the agent is connected.

        Otherwise the agent deletes it by its age.
        """
        link = self._links.get(node_id)
        if link and attempt_ids:
            link.send(wire.Forget(list(attempt_ids), output=True))

    async def stop_attempt(
        self, node_id: str, attempt_id: str, reason: str, *, checkpoint: bool
    ) -> None:
        """Send Stop."""
        self._link(node_id).send(
            wire.StopAttempt(
                attempt_id, int(self.config.get("epoch", 0)), reason, checkpoint
            )
        )

    async def release_gpus(self, node_id: str, gpu_uuids: Sequence[str]) -> None:
        """Send Release."""
        self._link(node_id).send(wire.Release(list(gpu_uuids)))

    def figures(self) -> Mapping[str, wire.GpuStatus]:
        """See NodeProvider."""
        newest: dict[str, wire.GpuStatus] = {}
        for node_id in self._links:
            for gpu in self._hellos[node_id].gpus:
                newest[gpu.uuid] = gpu
        return newest

    def separations(self) -> Mapping[str, str]:
        """See NodeProvider."""
        hellos = {node_id: self._hellos[node_id] for node_id in self._links}
        # An agent of an older version says nothing, and keeps nothing apart.
        return {
            node_id: hello.separation or Separation.AGREEMENT.value
            for node_id, hello in hellos.items()
        }

    def reconnect(self) -> None:
        """Drop the links."""
        for link in list(self._links.values()):
            link.close()

    async def dismiss(self) -> None:
        """Send Leave to every agent."""
        for link in self._links.values():
            link.send(wire.Leave())


def _start_message(
    order: AttemptOrder, epoch: int, gpu_uuids: list[str]
) -> wire.StartAttempt:
    checkpoint = order.checkpoint
    resume = order.resume_from
    return wire.StartAttempt(
        attempt_id=order.attempt_id,
        token=order.token,
        epoch=epoch,
        job_id=order.job_id or order.attempt_id,
        command=list(order.command),
        environment=dict(order.environment),
        workdir=order.workdir,
        gpu_uuids=gpu_uuids,
        cpus=order.gpu_spec.vcpus,
        memory_gb=order.gpu_spec.ram_gb,
        timeout_s=order.timeout_s,
        max_silence_s=order.max_silence_s,
        stdin=order.stdin,
        interactive=order.interactive,
        checkpoint_path=checkpoint.path,
        checkpoint_signal=checkpoint.signal,
        checkpoint_every_s=checkpoint.every_s,
        grace_s=order.grace_s,
        resume_sha256=resume.sha256 if resume else None,
        resume_name=resume.name if resume else None,
        resume_directory=resume.directory if resume else False,
        resume_args=list(checkpoint.resume_args),
        window=order.prefetch_group,
        ahead=order.prefetched,
        shares_gpus=order.shares_gpus,
        workspace=order.workspace or None,
        secrets=dict(order.secrets),
        project=order.project,
        user=order.user,
        carried_environment=order.carried_environment,
        code=order.code,
        log_limit_gb=order.log_limit_gb,
    )


def _refuse_other_users(writer: asyncio.StreamWriter) -> None:
    """PermissionError unless our own user or root opened this unix socket."""
    sock = writer.get_extra_info("socket")
    if sock is None or sock.family != socket.AF_UNIX:
        return
    refuse_other_users(sock)
