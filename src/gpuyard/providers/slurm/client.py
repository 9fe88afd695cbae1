"""The interface to Slurm, which its commands and slurmrestd implement."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.providers.slurm.records import Hardware, SlurmRow

# Slurm may send the warning a minute early.
_WARNING_S = 60.0


class SlurmRefusedError(Exception):
    """Slurm refused a job; `resources` is true when it lacks the resources."""

    def __init__(self, why: str, resources: bool) -> None:
        super().__init__(why)
        self.resources = resources


@dataclass(frozen=True, slots=True)
class SlurmRequest:
    """What a job needs.

    `minutes` is Slurm's own limit; `warning_s` says how long before it the job is told.
    An `exclusive` job has its node to itself; slurmrestd is sent none.
    """

    name: str
    nodes: int = 1
    cpus: int | None = None
    memory_mb: int | None = None
    minutes: int | None = None
    gpu: str = ""
    gpus: int = 0
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    warning_s: int | None = None
    exclusive: bool = False

    @classmethod
    def of(
        cls, order: AttemptOrder, gpu: str, margin_s: float, most_s: float | None
    ) -> "SlurmRequest":
        """What an attempt needs when it gets GPUs of the type `gpu`; see `limit_s`."""
        need = order.gpu_spec
        limit = limit_s(order, margin_s, most_s)
        warning_s = int(order.grace_s + _WARNING_S) if order.checkpoint.signal else None
        return cls(
            order.name,
            order.nodes,
            math.ceil(need.vcpus) if need.vcpus else None,
            math.ceil(need.ram_gb * 1024) if need.ram_gb else None,
            None if limit is None else math.ceil(limit / 60),
            gpu if need.gpu_count else "",
            need.gpu_count,
            warning_s=warning_s,
        )

    @property
    def gres(self) -> str:
        """The GPUs of one node, as the option `--gres` has them."""
        if not self.gpus:
            return ""
        return f"gpu:{self.gpu}:{self.gpus}" if self.gpu else f"gpu:{self.gpus}"


def limit_s(order: AttemptOrder, margin_s: float, most_s: float | None) -> float | None:
    """Slurm's own time limit in seconds; None for a job without a timeout.

    The runner ends a job at its timeout. Slurm's limit comes `margin_s` later, so that
    the job can save its work, but not after the partition's limit (`most_s`) when the
    timeout itself is within that.
    """
    if not order.timeout_s:
        return None
    with_margin_s = order.timeout_s + margin_s
    if most_s is None or order.timeout_s > most_s:
        return with_margin_s
    return min(with_margin_s, most_s)


class SlurmClient(Protocol):
    """A cluster. When it cannot be reached, calls raise ProviderError with the code
    NOT_CONNECTED or TIMEOUT.

    `runner_polls`: no signal can be sent to the runner alone, so it checks by itself
    whether it has to stop.
    """

    runner_polls: bool

    async def submit(
        self,
        request: SlurmRequest,
        script: str,
        label: str,
        output: Path,
        count: int = 1,
    ) -> str:
        """Queue a script, or an array of `count` copies of it; returns the job id.

        The queue lists the job with its `label`. SlurmRefusedError when Slurm refuses
        it.
        """
        ...

    async def submit_script(self, script: str, label: str) -> str:
        """Queue a script with the options in it; returns the job id.

        SlurmRefusedError when Slurm refuses it.
        """
        ...

    async def used(self, job_id: str) -> Mapping[str, float] | None:
        """The usage of an ended job: `elapsed_s`, `max_rss_bytes`.

        Empty when the cluster cannot tell. None while accounting lacks the job's end.
        """
        ...

    async def queue(self) -> list[SlurmRow]:
        """All jobs of this user that Slurm still lists."""
        ...

    async def gone(self, job_ids: Sequence[str]) -> list[SlurmRow]:
        """What Slurm still knows of jobs that have left the queue."""
        ...

    async def cancel(self, job_id: str, *, signal_only: bool = False) -> str:
        """End a job, or with `signal_only` tell its runner to stop.

        Returns Slurm's error; empty when there is none.
        """
        ...

    async def hardware(self) -> list[Hardware]:
        """The cluster's partitions and kinds of nodes."""
        ...

    async def usable_nodes(self) -> set[str]:
        """The names of the nodes that can be used."""
        ...

    async def missing(self) -> str:
        """What this cluster cannot tell, for people; empty when it can tell all."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...
