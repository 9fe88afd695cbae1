"""The provider whose nodes have agents. Agents connect, start attempts on their GPUs
and send reports.

`AgentProvider` does everything except accept connections; `local` does that on a unix
socket.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, ClassVar

from gpuyard.domain import wire
from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.contents import DatasetSources, Stores
from gpuyard.domain.errors import (
    InsufficientResourcesError,
    JobNotFoundError,
    ProviderError,
    RefusedError,
)
from gpuyard.domain.jobconfig import CostInfo, GpuSpec, JobResult, JobStatus
from gpuyard.domain.log_query import LogQuery
from gpuyard.domain.reasons import Reason
from gpuyard.domain.separation import Separation
from gpuyard.providers.base import (
    LogPiece,
    Sink,
    log_text,
    refuse_container,
    with_logs,
)
from gpuyard.providers.callers import Caller
from gpuyard.providers.connected_agents import ConnectedAgents
from gpuyard.providers.content_sender import refuse_older_agent
from gpuyard.providers.cost import cost_of
from gpuyard.providers.link import LOG_PART
from gpuyard.providers.node_provider import NodeProvider
from gpuyard.providers.node_streams import NodeStream
from gpuyard.providers.placing import place
from gpuyard.providers.results import AttemptResults, KnownAttempt
from gpuyard.providers.start_message import start_message, start_of_share

# How long an agent holds a request for a log that has nothing new.
_LOG_WAIT_S = 10.0


class AgentProvider(NodeProvider):
    """Attempts on nodes that have an agent.

    `config`: `epoch`, `price_per_hour`, `currency`, `heartbeat_s`.
    """

    PROVIDER_NAME: ClassVar[str] = "agent"
    accepts_prefetched: ClassVar[bool] = True

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._results = AttemptResults()
        self.agents = ConnectedAgents(
            self.PROVIDER_NAME,
            float(config.get("heartbeat_s", 2.0)),
            self._results,
            self.shares_home,
        )

    async def start(self, sink: Sink) -> None:
        """See GpuProviderInterface."""
        self.agents.sink = sink

    def hand_out(self, stores: Stores, datasets: DatasetSources | None = None) -> None:
        """See NodeProvider."""
        self.agents.stores = stores
        self.agents.datasets = datasets

    async def close(self) -> None:
        """Drop the links. Agents and jobs go on; agents connect to the next server."""
        await self.agents.close()

    async def serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        caller: Caller | None = None,
    ) -> None:
        """See NodeProvider."""
        await self.agents.serve(reader, writer, caller)

    def dismiss_node(self, node_id: str, reason: str) -> None:
        """See NodeProvider."""
        self.agents.dismiss(node_id, reason)

    def shares_home(self, node_id: str) -> bool:
        """Whether the node's agent is that of this server's home."""
        return False

    @property
    def _epoch(self) -> int:
        return int(self.config.get("epoch", 0))

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
        if order.nodes > 1:
            return self._submit_shares(order)
        known = self._results.find(order.attempt_id)
        if known and order.node_id not in ("", known.node_id):
            known = None  # another node has claimed it
        if known and known.is_over:
            return order.attempt_id
        if known and not order.node_id:
            node_id = known.node_id
            gpu_uuids = list(known.gpu_uuids)
        else:
            node_id, gpu_uuids = self._place(order)
        link = self.agents.link(node_id)
        if not self.agents.is_at_home(node_id):
            hello = self.agents.hello(node_id)
            refuse_older_agent(order, hello, self.PROVIDER_NAME)
        link.send(start_message(order, self._epoch, gpu_uuids))
        self._results.add_submitted(order.attempt_id, node_id, gpu_uuids)
        return order.attempt_id

    def _submit_shares(self, order: AttemptOrder) -> str:
        """Send Start to each of its nodes; ProviderError unless all are connected."""
        if not order.shares:
            message = (
                f"resources.nodes is {order.nodes}, and it is not said which nodes;"
                " submit the job to the gpuyard server, which chooses them."
            )
            raise ProviderError(message, self.PROVIDER_NAME, "UNSUPPORTED")
        links = [self.agents.link(share.node_id) for share in order.shares]
        address = self.agents.address(
            order.node_id, [share.node_id for share in order.shares]
        )
        for share, link in zip(order.shares, links, strict=True):
            if not self.agents.is_at_home(share.node_id):
                hello = self.agents.hello(share.node_id)
                refuse_older_agent(order, hello, self.PROVIDER_NAME)
            start = start_of_share(order, share, address, self._epoch)
            link.send(start)
            self._results.add_submitted(
                start.attempt_id, share.node_id, share.gpu_uuids
            )
        return order.attempt_id

    def _place(self, order: AttemptOrder) -> tuple[str, list[str]]:
        if order.node_id:
            return order.node_id, list(order.gpu_uuids)
        need = order.gpu_spec
        connected = self.agents.hellos.values()
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
        if known.node_id not in self.agents.links and not known.is_over:
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
        for hello in self.agents.hellos.values():
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
        if self.agents.links:
            return {"status": "healthy", "nodes": len(self.agents.links)}
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
        pieces = self._read_log(node_id, job_id, offset, lines, follow)
        async for piece in pieces:
            yield piece

    async def stream_log_pieces_of(
        self,
        node_id: str,
        job_id: str,
        *,
        offset: int,
        lines: int | None,
        follow: bool,
    ) -> AsyncIterator[LogPiece]:
        """See NodeProvider."""
        if self._results.find(job_id) is None:
            await self.agents.wait_for_one()
            if node_id not in self.agents.links:
                raise JobNotFoundError(job_id, self.PROVIDER_NAME)
        pieces = self._read_log(node_id, job_id, offset, lines, follow)
        async for piece in pieces:
            yield piece

    async def _read_log(
        self,
        node_id: str,
        job_id: str,
        offset: int,
        lines: int | None,
        follow: bool,
    ) -> AsyncIterator[LogPiece]:
        if lines == 0 and not follow:
            return
        tail = lines or 0
        if lines is not None:
            offset = -1
        while True:
            wait_s = _LOG_WAIT_S if follow else 0.0
            link = self.agents.link(node_id)
            part = await link.read_log(job_id, offset, tail, wait_s)
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

    async def find_lines(
        self, node_id: str, attempt_id: str, query: LogQuery, wait_s: float
    ) -> wire.LinesFound:
        """See NodeProvider."""
        await self.agents.wait_for_one()
        link = self.agents.link(node_id)
        hello = self.agents.hello(node_id)
        if not hello.finds_lines:
            raise _too_old(hello, "cannot look for lines in logs")
        return await link.find_lines(attempt_id, query, wait_s)

    async def _node_of(self, attempt_id: str) -> str:
        """Ask the agents which node has an attempt; JobNotFoundError when none has."""
        await self.agents.wait_for_one()
        for node_id, link in list(self.agents.links.items()):
            state = (await link.find(attempt_id)).state
            if state != "absent":
                self._results.add_listed(node_id, attempt_id, state)
                return node_id
        raise JobNotFoundError(attempt_id, self.PROVIDER_NAME)

    async def open_stream(
        self,
        node_id: str,
        attempt_id: str,
        port: int = 0,
        *,
        stdin: bool = False,
        own_port: bool = False,
    ) -> NodeStream:
        """See NodeProvider."""
        await self.agents.wait_for_one()
        link = self.agents.link(node_id)
        _refuse_stream_of_older_agent(self.agents.hello(node_id), stdin=stdin)
        return await self.agents.streams.open(
            link, attempt_id, port, stdin=stdin, own_port=own_port
        )

    # --- agents ---

    async def find_by_attempt(self, attempt_id: str) -> str | None:
        """Ask the agents; their reference is the attempt's id."""
        try:
            await self._node_of(attempt_id)
        except JobNotFoundError:
            return None
        return attempt_id

    async def has_attempt(self, node_id: str, attempt_id: str) -> bool:
        """See NodeProvider."""
        found = await self.agents.link(node_id).find(attempt_id)
        return found.state != "absent"

    async def forget(self, node_id: str, attempt_ids: Sequence[str]) -> None:
        """Send Forget, if the agent is connected.

        Otherwise its next Hello lists the attempts again.
        """
        link = self.agents.links.get(node_id)
        if link and attempt_ids:
            link.send(wire.Forget(list(attempt_ids)))

    async def discard(self, node_id: str, attempt_ids: Sequence[str]) -> None:
        """Send Forget with the output, if the agent is connected.

        Otherwise the agent deletes it by its age.
        """
        link = self.agents.links.get(node_id)
        if link and attempt_ids:
            link.send(wire.Forget(list(attempt_ids), output=True))

    async def stop_attempt(
        self, node_id: str, attempt_id: str, reason: str, *, checkpoint: bool
    ) -> None:
        """Send Stop."""
        stop = wire.StopAttempt(attempt_id, self._epoch, reason, checkpoint)
        self.agents.link(node_id).send(stop)

    async def release_gpus(self, node_id: str, gpu_uuids: Sequence[str]) -> None:
        """Send Release."""
        self.agents.link(node_id).send(wire.Release(list(gpu_uuids)))

    def figures(self) -> Mapping[str, Sequence[wire.GpuStatus]]:
        """See NodeProvider."""
        hellos = self.agents.hellos
        return {node_id: hello.gpus for node_id, hello in hellos.items()}

    def separations(self) -> Mapping[str, str]:
        """See NodeProvider."""
        # An agent of an older version says nothing, and keeps nothing apart.
        return {
            node_id: hello.separation or Separation.AGREEMENT.value
            for node_id, hello in self.agents.hellos.items()
        }

    def reconnect(self) -> None:
        """Drop the links."""
        self.agents.disconnect()

    async def dismiss(self) -> None:
        """Send Leave to every agent."""
        for link in self.agents.links.values():
            link.send(wire.Leave())


def _refuse_stream_of_older_agent(hello: wire.Hello, *, stdin: bool) -> None:
    """RefusedError if the agent that said `hello` opens no such streams."""
    opens_it = hello.stdin_streams if stdin else hello.streams
    if opens_it:
        return
    lack = "can neither run commands beside jobs nor forward ports"
    if stdin:
        lack = "passes no input on to jobs"
    raise _too_old(hello, lack)


def _too_old(hello: wire.Hello, lack: str) -> RefusedError:
    return RefusedError(
        f"The agent on {hello.name} is of version {hello.version or 'unknown'}, which"
        f" {lack}.",
        "Restart it when its jobs have ended: `gpuyard down`, `gpuyard up`.",
    )
