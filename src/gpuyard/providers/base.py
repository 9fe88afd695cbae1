"""The base classes of providers.

`GpuProviderInterface` is S2's interface: seven calls that every provider has, and
further calls with defaults. gpuyard's own providers derive from one of its two
subclasses: `QueueProvider`, which places jobs itself and is polled, or `NodeProvider`
(`node_provider.py`), whose nodes have agents that report.

A provider keeps no state of its own: the ledger does. It gets an attempt's id with the
submission. When the reply to a submission is lost, the controller looks for that id
(`find_by_attempt`) before it submits the attempt again.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

from gpuyard.config.pools import PoolSettings
from gpuyard.domain import wire
from gpuyard.domain.attempt_order import (
    AttemptOrder,
    config_from_order,
    order_from_config,
)
from gpuyard.domain.bills import CloudBill
from gpuyard.domain.errors import (
    JobNotFoundError,
    ProviderError,
)
from gpuyard.domain.jobconfig import CostInfo, GpuSpec, JobConfig, JobResult
from gpuyard.domain.offers import Offer
from gpuyard.domain.stream_frames import RunCommand
from gpuyard.providers.commands import JobCommand
from gpuyard.providers.cost import cost_of
from gpuyard.providers.instances.api import ListPrice, MissingRight
from gpuyard.providers.job_folders import LeftFolder, LoggingFolder, WantedFiles
from gpuyard.providers.output import LogPiece as LogPiece
from gpuyard.providers.output import OutputPart as OutputPart
from gpuyard.providers.output import last_lines as last_lines
from gpuyard.providers.output import log_text as log_text
from gpuyard.providers.placing import gpu_spec_of
from gpuyard.providers.pool_hands import PoolHands, PoolOwner
from gpuyard.providers.program_use import ProgramUse

TRANSIENT = frozenset({"NOT_CONNECTED", "TIMEOUT", "THROTTLED"})
"""Codes of a ProviderError after which nobody knows whether the call was carried out.

Such a call may be repeated.
"""
_LOGS_LINES = 1000
"""How much of its output a JobResult has."""


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A checkpoint where the job wrote it.

    `path` is relative to the job's folder, `at` is in UTC seconds, `where` is the file
    or folder that holds it. It lies below `beneath`, a folder that the job cannot
    replace by a link; without that, below its own folder. No link on the way from there
    is followed.
    """

    path: str
    step: int | None
    at: float
    where: Path
    directory: bool = False
    beneath: Path | None = None


class Sink(Protocol):
    """Receives the agents' reports; each call returns after the commit."""

    async def node_joined(self, provider: str, hello: wire.Hello) -> wire.Welcome:
        """A node's agent has connected; `hello` has its hardware and attempts."""
        ...

    def has_certificate(self, node_id: str) -> bool:
        """Whether the node is a machine that has joined, which has a certificate."""
        ...

    async def node_left(self, node_id: str) -> None:
        """The connection to a node's agent is broken."""
        ...

    async def node_claimed(self, node_id: str, address: str) -> None:
        """A second machine, at this address, uses the certificate of the node; it was
        not let in.
        """
        ...

    async def reported(
        self, node_id: str, bodies: Sequence[wire.NumberedReport]
    ) -> None:
        """The reports of a node's agent, in order."""
        ...


class GpuProviderInterface(ABC):
    """Runs attempts. `job_id` is the reference that the submission returned.

    Only S2's seven calls are abstract. All others have a default that is built on them.
    """

    PROVIDER_NAME: ClassVar[str]
    containers: ClassVar[bool] = False
    """Whether it runs jobs that name an image."""
    image_is_optional: ClassVar[bool] = False
    """Whether it also runs jobs that name none, if it runs those that do."""
    containers_on: ClassVar[str] = ""
    """The provider on whose nodes and GPUs this one runs its containers, if any."""
    ends_with_server: ClassVar[bool] = False
    """Whether its jobs end when the server of gpuyard does. They are queued again then;
    and their output is what the result of an ended one has as `logs`.
    """
    wants_storage: ClassVar[bool] = False
    """Whether its `config` needs `storage`, the settings of the checkpoint store."""

    output_moves: ClassVar[bool] = False
    """Whether output may lose its beginning while a job runs, because its log is
    rotated. Then people read our copy, also while the job runs.
    """

    agents_report: bool = False
    """Whether agents report what its jobs' output says; then only a copy of it is kept
    here.
    """
    runs_commands: bool = False
    """Whether it can run commands beside its jobs (`start_command`)."""
    concurrency: int = 8
    """How many submissions may be under way at once."""
    max_pending: int = 8
    """How many attempts of equal needs may wait there."""
    poll_s: float = 2.0
    """Seconds between two polls."""
    answer_age_s: float = 60.0
    """How old the state may be that `poll_jobs` tells."""
    offers_s: float = 60.0
    """Seconds between two readings of its offers."""
    doing: Mapping[str, str] = MappingProxyType({})
    """By attempt: what a submission that is under way is doing, for people."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    # --- S2's seven calls ---

    @abstractmethod
    async def submit_job(self, job_config: JobConfig) -> str:
        """Start or queue the job; returns the provider's reference.

        A program that fails by itself runs again, `retry_count` times at most. Repeated
        with the same `attempt_id`, the call changes nothing.
        """

    @abstractmethod
    async def get_job_status(self, job_id: str) -> JobResult:
        """The state of the job, with the last lines of its output; JobNotFoundError
        when the provider does not know it.
        """

    @abstractmethod
    async def cancel_job(self, job_id: str) -> bool:
        """End the job; True when it was still live, JobNotFoundError when unknown."""

    @abstractmethod
    async def get_job_logs(self, job_id: str, lines: int | None = None) -> str:
        """The job's output so far, or the last `lines` of it."""

    @abstractmethod
    async def get_cost_info(self, job_id: str) -> CostInfo:
        """What the job has cost so far."""

    @abstractmethod
    async def list_available_gpus(self) -> list[GpuSpec]:
        """What the provider can supply, one entry for each kind of node or offer."""

    @abstractmethod
    async def health_check(self) -> dict[str, Any]:
        """`{"status": "healthy" | "degraded" | "unhealthy", "message": …}`."""

    # --- life cycle ---

    async def start(self, sink: Sink) -> None:
        """Begin to work; reports go to `sink`."""
        return

    async def close(self) -> None:
        """Close all connections; running jobs keep running."""
        return

    # --- the account at a cloud ---

    async def missing_rights(self) -> Sequence[MissingRight] | None:
        """The permissions that it needs and its account lacks, found without renting
        anything; None if it knows of no permissions. ProviderError.
        """
        return None

    async def list_prices(self, *, refresh: bool = False) -> Sequence[ListPrice] | None:
        """The list prices that it goes by when its cloud tells none; with `refresh`
        read anew from the cloud, for later servers too. None if it has no such list.
        """
        return None

    async def bill(self, day: date) -> CloudBill | None:
        """What its cloud bills for a day; None if it tells no bills. ProviderError."""
        return None

    # --- submission ---

    async def check(
        self, program: Sequence[str], workdir: str | None, path: str | None
    ) -> None:
        """Refuse a job that could only fail here; InvalidInputError names the field.

        `program` is the command's first two words, `path` the PATH that the job sets.
        Called once for all jobs of a request that agree in the three arguments.
        """
        return

    async def submit_attempt(self, order: AttemptOrder) -> str:
        """Start or queue an attempt; returns the provider's reference.

        Repeated with the same `attempt_id`, it changes nothing.
        """
        return await self.submit_job(config_from_order(order))

    async def find_by_attempt(self, attempt_id: str) -> str | None:
        """The provider's reference; None when the submission never arrived."""
        return None

    # --- polling ---

    async def offers(self) -> Sequence[Offer]:
        """What it can supply; the ids are `PROVIDER_NAME/…`."""
        return ()

    async def poll_jobs(self, job_ids: Sequence[str]) -> Mapping[str, JobResult]:
        """The state of each of these jobs, in as few requests as possible.

        Jobs that the provider does not know are left out.
        """
        found: dict[str, JobResult] = {}
        for job_id in job_ids:
            try:
                found[job_id] = await self.get_job_status(job_id)
            except JobNotFoundError:
                continue
        return found

    async def news(self, timeout_s: float) -> None:
        """Return when a job may have changed, and after `timeout_s` at the latest."""
        await asyncio.sleep(timeout_s)

    def has_run(self, job_id: str, ran_s: float) -> None:
        """Hear from an earlier server that the job has run for `ran_s` seconds until
        now, whatever the wall clock says.
        """
        return

    def why_waiting(self, job_id: str) -> str:
        """Why a job waits, for people; empty if `poll_jobs` tells."""
        return ""

    async def stop_job(self, job_id: str, *, checkpoint: bool) -> bool:
        """Like `cancel_job`; with `checkpoint` the job can save its work first."""
        return await self.cancel_job(job_id)

    async def forget_job(self, job_id: str) -> None:
        """Remove what the job left: its end is recorded and its output is copied."""
        return

    # --- pools ---

    def pool_hands(self, settings: PoolSettings, owner: PoolOwner) -> PoolHands | None:
        """What starts the nodes of this pool; None if the provider can start none.
        `owner`: the instance.
        """
        return None

    # --- beside a job ---

    async def start_command(self, job_id: str, request: RunCommand) -> JobCommand:
        """Start a command beside the running job; ProviderError when that fails."""
        message = f"{self.PROVIDER_NAME} runs no commands beside its jobs."
        raise ProviderError(message, self.PROVIDER_NAME, "UNSUPPORTED")

    def exec_by_hand(self, job_id: str) -> str:
        """What a person types to run a COMMAND beside the running job, where gpuyard
        cannot; empty if there is nothing.
        """
        return ""

    def forward_by_hand(self, job_id: str, port: int) -> str:
        """What a person types to reach a port of the running job, where gpuyard cannot;
        empty if there is nothing.
        """
        return ""

    # --- output ---

    async def stream_log_pieces(
        self, job_id: str, *, offset: int, lines: int | None, follow: bool
    ) -> AsyncIterator[LogPiece]:
        """The output from the byte `offset` on, or its last `lines`.

        This default reads what is before `offset`, too, and cannot say where the last
        lines begin.
        """
        parts = self.stream_logs(job_id, lines=lines, follow=follow)
        if lines is not None:
            async for part in parts:
                yield LogPiece(None, part)
            return
        begin = 0
        async for part in parts:
            wanted = part[max(0, offset - begin) :]
            begin += len(part)
            if wanted:
                yield LogPiece(begin - len(wanted), wanted)

    async def stream_logs(
        self, job_id: str, *, lines: int | None, follow: bool
    ) -> AsyncIterator[bytes]:
        """The output from its start, or its last `lines`.

        With `follow` the stream ends when the job has ended. This default reads the
        whole log each time.
        """
        if not follow:
            yield (await self.get_job_logs(job_id, lines)).encode()
            return
        log = await self.get_job_logs(job_id)
        new = log if lines is None else last_lines(log, lines)
        while True:
            if new:
                yield new.encode()
            is_over = (await self.get_job_status(job_id)).status.is_over
            longer = await self.get_job_logs(job_id)
            new = longer[len(log) :]
            log = longer
            if is_over:
                break
            await asyncio.sleep(self.poll_s)
        if new:
            yield new.encode()

    async def stream_output(
        self, job_id: str, *, mark: str
    ) -> AsyncIterator[OutputPart]:
        """The output behind `mark`, which an earlier part had, until the job has ended;
        all of it for an empty mark.

        A provider has its own kind of mark if the byte at which output begins moves.
        This default counts bytes.
        """
        offset = int(mark or 0)
        pieces = self.stream_log_pieces(job_id, offset=offset, lines=None, follow=True)
        async for piece in pieces:
            offset += len(piece.data)
            yield OutputPart(piece.data, partial(str, offset))

    async def checkpoints(self, job_id: str) -> Sequence[SavedFile]:
        """The checkpoints that the job has saved so far, oldest first."""
        return ()

    async def left_folder(self, job_id: str, wanted: WantedFiles) -> LeftFolder | None:
        """What an ended job has left, on this host; None if it cannot be had here."""
        return None

    async def logging_folder(
        self, job_id: str, workdir: str | None
    ) -> LoggingFolder | None:
        """Where its program logs, which was submitted with this `workdir`; None if no
        file there can be told to be its, or if this host does not see it.
        """
        return None

    async def use_of(self, job_id: str) -> ProgramUse | None:
        """What its program uses now; None where that is not known."""
        return None

    async def bring_back(self, job_id: str) -> None:
        """Copy back what an ended attempt has changed in its copy of the workspace."""
        return


class QueueProvider(GpuProviderInterface):
    """A provider that places jobs itself and reports nothing unless it is polled.

    A subclass has `submit_attempt`, `get_job_status`, `stop_job`, `stream_logs` and
    `health_check`; S2's other calls follow from them.
    """

    currency: str = "USD"

    async def submit_job(self, job_config: JobConfig) -> str:
        """See GpuProviderInterface."""
        return await self.submit_attempt(order_from_config(job_config))

    @abstractmethod
    async def submit_attempt(self, order: AttemptOrder) -> str:
        """See GpuProviderInterface."""

    @abstractmethod
    async def stop_job(self, job_id: str, *, checkpoint: bool) -> bool:
        """See GpuProviderInterface."""

    async def cancel_job(self, job_id: str) -> bool:
        """TERM, its grace, KILL."""
        return await self.stop_job(job_id, checkpoint=False)

    @abstractmethod
    def stream_logs(
        self, job_id: str, *, lines: int | None, follow: bool
    ) -> AsyncIterator[bytes]:
        """See GpuProviderInterface."""

    async def get_job_logs(self, job_id: str, lines: int | None = None) -> str:
        """See GpuProviderInterface."""
        return await log_text(self.stream_logs(job_id, lines=lines, follow=False))

    async def price_per_hour(self, job_id: str) -> Decimal:
        """What an hour of the job costs."""
        return Decimal(0)

    async def get_cost_info(self, job_id: str) -> CostInfo:
        """The seconds it has run, at its price per hour."""
        result = await self.get_job_status(job_id)
        return cost_of(result, await self.price_per_hour(job_id), self.currency)

    async def list_available_gpus(self) -> list[GpuSpec]:
        """The GPUs of the offers that can be had now."""
        return [
            gpu_spec_of(offer)
            for offer in await self.offers()
            if offer.gpus and not offer.problem
        ]


async def with_logs(provider: GpuProviderInterface, result: JobResult) -> JobResult:
    """A result with the last lines of the job's output; without them while the output
    cannot be read.
    """
    with suppress(ProviderError):
        logs = await provider.get_job_logs(result.job_id, _LOGS_LINES)
        return replace(result, logs=logs)
    return result


def refuse_container(order: AttemptOrder, provider: str) -> None:
    """ProviderError for a job that needs a container, where programs run without."""
    given = {"image": order.image, "volumes": ", ".join(order.volumes)}
    for field, value in given.items():
        if value:
            message = (
                f"{field} is {value}, and {provider} runs programs without a container;"
                " leave it out, or use a provider that runs containers."
            )
            raise ProviderError(message, provider, "UNSUPPORTED")
