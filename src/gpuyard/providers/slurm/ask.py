"""What is asked of Slurm, however it is reached."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpuyard.domain.jobconfig import JobConfig
from gpuyard.providers.slurm.text import Hardware, Row

# The warning comes so long before Slurm's limit: it may be sent a minute early.
_WARNING_S = 60.0


class RefusedError(Exception):
    """Slurm will not have a job. `resources`: for want of them."""

    def __init__(self, why: str, resources: bool) -> None:
        super().__init__(why)
        self.resources = resources


@dataclass(frozen=True, slots=True)
class Request:
    """What a job needs. `minutes` is Slurm's own limit; `warning_s` says how long before it the job is told."""

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

    @classmethod
    def of(cls, config: JobConfig, gpu: str, margin_s: float, most_s: float | None) -> "Request":
        """The needs of a job that is given GPUs of the type `gpu`; see `limit_s` for the rest."""
        need, limit = config.gpu_spec, limit_s(config, margin_s, most_s)
        return cls(
            config.name,
            int(config.provider_options.get("nodes") or 1),
            math.ceil(need.vcpus) if need.vcpus else None,
            math.ceil(need.ram_gb * 1024) if need.ram_gb else None,
            None if limit is None else math.ceil(limit / 60),
            gpu if need.gpu_count else "",
            need.gpu_count,
            warning_s=int(config.grace_s + _WARNING_S) if config.checkpoint.signal else None,
        )

    @property
    def gres(self) -> str:
        """Its GPUs of one node, in Slurm's words."""
        return "" if not self.gpus else f"gpu:{self.gpu}:{self.gpus}" if self.gpu else f"gpu:{self.gpus}"


def limit_s(config: JobConfig, margin_s: float, most_s: float | None) -> float | None:
    """Slurm's own limit for a job that has one, in seconds.

    The runner ends a job that takes too long; Slurm's own limit is `margin_s` later, so that it can save its work, but
    not beyond what the partition allows (`most_s`) if the job's own is within that.
    """
    if not config.timeout_minutes:
        return None
    wanted_s = config.timeout_minutes * 60
    return wanted_s + margin_s if most_s is None or wanted_s > most_s else min(wanted_s + margin_s, most_s)


class Slurm(Protocol):
    """A cluster. ProviderErrors with the codes NOT_CONNECTED and TIMEOUT say that it cannot be reached.

    `watched`: no signal reaches a runner alone, so it looks for itself whether it is to end.
    """

    watched: bool

    async def submit(self, request: Request, script: str, label: str, output: Path, count: int = 1) -> str:
        """Queue a script, or an array of it; its number. `label` comes back in the queue.

        RefusedError when Slurm will not have it.
        """
        ...

    async def submit_script(self, script: str, label: str) -> str:
        """Queue a script as it is, with the options it holds itself; its number. RefusedError as above."""
        ...

    async def used(self, job_id: str) -> Mapping[str, float] | None:
        """What a job that is over has used (`elapsed_s`, `max_rss_bytes`), as far as this cluster tells; None while the
        accounts do not have its end."""
        ...

    async def queue(self) -> list[Row]:
        """All jobs of this user that it still knows, in one question."""
        ...

    async def gone(self, job_ids: Sequence[str]) -> list[Row]:
        """What it still knows of jobs that have left the queue."""
        ...

    async def cancel(self, job_id: str, *, kindly: bool = False) -> str:
        """End a job, or only tell its runner that it is to end; returns what Slurm has against it."""
        ...

    async def hardware(self) -> list[Hardware]:
        """What it has."""
        ...

    async def usable(self) -> set[str]:
        """The nodes that can be used."""
        ...

    async def missing(self) -> str:
        """What this cluster cannot tell, for people; empty where there is nothing."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
