"""The base class of providers whose nodes have agents."""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import ClassVar

from gpuyard.domain import wire
from gpuyard.domain.attempt_order import AttemptOrder, order_from_config
from gpuyard.domain.contents import DatasetSources, Stores
from gpuyard.domain.errors import ProviderError, RefusedError
from gpuyard.domain.jobconfig import JobConfig
from gpuyard.domain.log_query import LogQuery
from gpuyard.providers.base import GpuProviderInterface, LogPiece
from gpuyard.providers.callers import Caller
from gpuyard.providers.node_streams import NodeStream


class NodeProvider(GpuProviderInterface):
    """A provider whose nodes have agents: gpuyard places on devices, agents report."""

    accepts_prefetched: ClassVar[bool] = False
    """Whether its agents accept prefetched attempts (`AttemptOrder.prefetched`).

    They call each attempt by the id that gpuyard gave it.
    """

    async def submit_job(self, job_config: JobConfig) -> str:
        """See GpuProviderInterface. An agent runs an attempt once, so a `retry_count`
        is refused.
        """
        if job_config.retry_count:
            message = (
                f"retry_count is {job_config.retry_count}, and an agent runs a job"
                " once; submit it to the gpuyard server, which tries it again."
            )
            raise ProviderError(message, self.PROVIDER_NAME, "UNSUPPORTED")
        return await self.submit_attempt(order_from_config(job_config))

    @abstractmethod
    async def submit_attempt(self, order: AttemptOrder) -> str:
        """See GpuProviderInterface."""

    @abstractmethod
    async def serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        caller: Caller | None = None,
    ) -> None:
        """Serve one agent's connection, from its Hello to its end. `caller`: the
        machine at its other end, if that has joined.
        """

    def dismiss_node(self, node_id: str, reason: str) -> None:
        """Tell a machine that it is no longer part of the instance, and end its
        link.
        """

    def hand_out(self, stores: Stores, datasets: DatasetSources | None = None) -> None:
        """Let agents fetch from `stores` what jobs took along from their submission;
        from `datasets`, what they read.
        """

    async def has_attempt(self, node_id: str, attempt_id: str) -> bool:
        """Whether the agent of the node has the attempt; no other is asked, or
        believed. ProviderError.
        """
        return await self.find_by_attempt(attempt_id) is not None

    @abstractmethod
    async def forget(self, node_id: str, attempt_ids: Sequence[str]) -> None:
        """Let the agent drop its records of attempts that the ledger has settled."""

    async def discard(self, node_id: str, attempt_ids: Sequence[str]) -> None:
        """Let the agent delete what is left of attempts that the ledger has forgotten:
        their output, and the folders that were their own.
        """

    @abstractmethod
    async def stop_attempt(
        self, node_id: str, attempt_id: str, reason: str, *, checkpoint: bool
    ) -> None:
        """End an attempt; with `checkpoint` it gets the checkpoint signal first."""

    def stream_log_pieces_of(
        self,
        node_id: str,
        job_id: str,
        *,
        offset: int,
        lines: int | None,
        follow: bool,
    ) -> AsyncIterator[LogPiece]:
        """As `stream_log_pieces`, from this node; no other is asked, or believed."""
        return self.stream_log_pieces(job_id, offset=offset, lines=lines, follow=follow)

    async def find_lines(
        self, node_id: str, attempt_id: str, query: LogQuery, wait_s: float
    ) -> wire.LinesFound:
        """A page of lines of an attempt's output; while there are none, wait so long.

        RefusedError says why lines cannot be found there, ProviderError that the node
        is away.
        """
        raise RefusedError("The nodes of this provider find no lines.")

    async def open_stream(
        self,
        node_id: str,
        attempt_id: str,
        port: int = 0,
        *,
        stdin: bool = False,
        own_port: bool = False,
    ) -> NodeStream:
        """Open a stream to a running attempt: to this port of its node, with `stdin` to
        the standard input of its program, or else to a command beside it
        (`domain/stream_frames.py`). `own_port`: only if the attempt listens there.

        RefusedError says why there is none, ProviderError that the node is away.
        """
        raise RefusedError("The nodes of this provider take no streams.")

    @abstractmethod
    async def release_gpus(self, node_id: str, gpu_uuids: Sequence[str]) -> None:
        """Have the node end the quarantine of these GPUs.

        ProviderError when the node is not connected.
        """

    @abstractmethod
    def figures(self) -> Mapping[str, Sequence[wire.GpuStatus]]:
        """What each connected node said last of GPUs (free memory, temperature …), by
        node. It may speak of GPUs that are not its own.
        """

    def separations(self) -> Mapping[str, str]:
        """How jobs are kept apart (`domain/separation.py`) on each connected node."""
        return {}

    @abstractmethod
    def reconnect(self) -> None:
        """Drop the agents' connections.

        They connect again, list what they have, and repeat what was not acknowledged.
        """

    @abstractmethod
    async def dismiss(self) -> None:
        """Ask every agent to exit; running jobs keep running for the next agent."""
