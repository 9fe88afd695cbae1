"""The provider interface: S2's seven calls, and what a provider may add by mixin.

A provider keeps no truth: the ledger does. It is told an attempt's id with the submission, so that a submission
whose reply was lost is found again (`FindsAttempts`) and never made twice.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from gpuyard.domain import wire
from gpuyard.domain.jobconfig import CostInfo, GpuSpec, JobConfig, JobResult
from gpuyard.domain.offers import Offer

TRANSIENT = frozenset({"NOT_CONNECTED", "TIMEOUT", "THROTTLED"})
"""Codes of a ProviderError after which a call may have been carried out or not, and is worth another try."""


class GpuProviderInterface(ABC):
    """Where attempts run. `job_id` is always the provider's own reference, as `submit_job` returned it."""

    PROVIDER_NAME: ClassVar[str]
    containers: ClassVar[bool] = False
    """Whether it runs jobs that name an image."""
    wants_storage: ClassVar[bool] = False
    """Whether its `config` is to hold `storage`, the settings of the place from which it fetches checkpoints."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    @abstractmethod
    async def submit_job(self, job_config: JobConfig) -> str:
        """Start or queue it; returns the provider's reference. Repeated with the same `attempt_id`, changes nothing."""

    @abstractmethod
    async def get_job_status(self, job_id: str) -> JobResult:
        """Where the job is; JobNotFoundError when the provider does not know it."""

    @abstractmethod
    async def cancel_job(self, job_id: str) -> bool:
        """Ask it to end; True when the job was still live. JobNotFoundError when unknown."""

    @abstractmethod
    async def get_job_logs(self, job_id: str, lines: int | None = None) -> str:
        """Its output so far, or the last `lines` of it."""

    @abstractmethod
    async def get_cost_info(self, job_id: str) -> CostInfo:
        """What it has cost so far."""

    @abstractmethod
    async def list_available_gpus(self) -> list[GpuSpec]:
        """What the provider can supply, one entry per kind of node or offer."""

    @abstractmethod
    async def health_check(self) -> dict[str, Any]:
        """`{"status": "healthy" | "degraded" | "unhealthy", "message": …}`."""

    async def check(self, program: Sequence[str], workdir: str | None, path: str | None) -> None:
        """Refuse at submission what could only fail here later; InvalidInputError names the field.

        `program` is the command's first two words, `path` the PATH that the job sets; jobs that share all three with
        one that was looked at in the same request are not looked at.
        """
        return

    async def start(self, sink: "Sink") -> None:
        """Begin to work; news goes to `sink`."""
        return

    async def close(self) -> None:
        """Let go of connections; what runs, runs on."""
        return


class Sink(Protocol):
    """Who hears the providers' news: the controller. Each call returns after the commit."""

    async def node_joined(self, provider: str, hello: wire.Hello) -> wire.Welcome:
        """A node's agent has linked up and says what it has and what lives on it."""
        ...

    async def node_left(self, node_id: str) -> None:
        """The link to a node's agent is broken."""
        ...

    async def reported(self, node_id: str, bodies: Sequence[wire.Report]) -> None:
        """What a node's agent reports, in order."""
        ...


@runtime_checkable
class StreamsLogs(Protocol):
    """A provider that can hand out output as it is written."""

    def stream_logs(self, job_id: str, *, lines: int | None, follow: bool) -> AsyncIterator[bytes]:
        """The output from its start, or its last `lines`; with `follow` until the job has ended."""
        ...


@runtime_checkable
class FindsAttempts(Protocol):
    """A provider that can tell whether it holds an attempt whose submission was never answered."""

    async def find_by_attempt(self, attempt_id: str) -> str | None:
        """The provider's reference, or None when the submission never arrived."""
        ...


@runtime_checkable
class Queues(Protocol):
    """A provider that places jobs itself and tells nothing unless asked: it is polled.

    `concurrency`: how many submissions may be under way at once. `max_pending`: how many attempts of a shape may wait
    there. `poll_s`: how often to ask. `doing`: by attempt, what
    a submission that is under way is at, for people.
    """

    concurrency: int
    max_pending: int
    poll_s: float
    doing: Mapping[str, str]

    async def poll_jobs(self, job_ids: Sequence[str]) -> Mapping[str, JobResult]:
        """Where each of these is, with as few questions as can be; what it does not know is left out."""
        ...

    async def offers(self) -> Sequence[Offer]:
        """What it can supply; the ids are `PROVIDER_NAME/…`."""
        ...

    async def stop_job(self, job_id: str, *, checkpoint: bool) -> bool:
        """`cancel_job`, with the job's checkpoint signal and its grace first if asked."""
        ...

    async def forget_job(self, job_id: str) -> None:
        """Its end and its output are in safe hands: what it left may go."""
        ...


@runtime_checkable
class SavesCheckpoints(Protocol):
    """A provider that can hand over the checkpoints a job has written."""

    async def checkpoints(self, job_id: str) -> Sequence["SavedFile"]:
        """What it has saved so far, oldest first."""
        ...


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A checkpoint where it was written: `path` is relative to the job's folder, `at` UTC seconds, and `where` the
    file or folder that holds it."""

    path: str
    step: int | None
    at: float
    where: Path
    directory: bool = False


@runtime_checkable
class BringsBack(Protocol):
    """A provider whose jobs use a copy of their workspace."""

    async def bring_back(self, job_id: str) -> None:
        """Bring here what an attempt that is over has changed in its workspace."""
        ...


@runtime_checkable
class OwnsNodes(Protocol):
    """A provider whose nodes have agents: gpuyard places on devices and agents push reports."""

    takes_claims: bool
    """Its agents let attempts that were sent ahead wait for a place (`ahead`, `window` in `provider_options`), and
    call each by the id we gave it."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One agent's link, from its Hello to its end."""
        ...

    async def forget(self, node_id: str, attempt_ids: Sequence[str]) -> None:
        """These attempts are settled in the ledger: the agent may drop their records."""
        ...

    async def stop_attempt(self, node_id: str, attempt_id: str, reason: str, *, checkpoint: bool) -> None:
        """End an attempt for `reason`, with its checkpoint signal first if asked."""
        ...

    async def release_gpus(self, node_id: str, gpu_uuids: Sequence[str]) -> None:
        """Have the node let these GPUs out of quarantine; ProviderError when it is not connected."""
        ...

    def figures(self) -> Mapping[str, wire.Gpu]:
        """The newest reading of each GPU, by UUID: free memory, temperature and the like, which no ledger holds."""
        ...

    def reconnect(self) -> None:
        """Drop the agents' links; they dial in again, say what they have, and repeat what was not acknowledged."""
        ...

    async def dismiss(self) -> None:
        """Ask every agent to leave; jobs that run are left running, for the next agent to adopt."""
        ...
