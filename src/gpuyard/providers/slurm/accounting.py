"""Slurm's accounting (slurmdbd): the ends of jobs that have left the queue.

Not every cluster has it.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from gpuyard.domain.errors import ProviderError
from gpuyard.domain.jobconfig import JobStatus
from gpuyard.providers.slurm import parse_commands
from gpuyard.providers.slurm.records import SlurmRow
from gpuyard.providers.slurm.site import CommandOutput

NO_ACCOUNTING = (
    "no accounting (slurmdbd): exit codes and end times of jobs that could not leave"
    " their own are missing"
)
# After a failed call `sacct` is called again this much later.
RETRY_S = 60.0
_LIVE = (JobStatus.PENDING, JobStatus.RUNNING)


class Accounting:
    """Calls `sacct`, while it answers. `slurm` runs a Slurm command."""

    def __init__(self, slurm: Callable[..., Awaitable[CommandOutput]]) -> None:
        self._slurm = slurm
        self._retry_at = 0.0

    async def ended(self, job_ids: Sequence[str]) -> list[SlurmRow]:
        """Those of these jobs that are over; nothing while there is no accounting.

        A job that still runs there may have ended long ago: Slurm loses ends on the way
        to slurmdbd.
        """
        if time.monotonic() < self._retry_at:
            return []
        output = await self._sacct(job_ids)
        if output is None:
            return []
        rows = parse_commands.read_accounting(output)
        return [row for row in rows if row.status not in _LIVE]

    async def _sacct(self, job_ids: Sequence[str]) -> str | None:
        """What `sacct` prints about jobs; None when it fails."""
        wanted = ("-j", ",".join(job_ids), "-o", parse_commands.ACCOUNT_FORMAT)
        answer = None
        try:
            answer = await self._slurm("sacct", "-n", "-P", "-X", *wanted)
        except ProviderError:
            # Its error looks like one of the controller, which does not need slurmdbd.
            pass
        finally:
            has_failed = answer is None or answer.code != 0
            self._retry_at = time.monotonic() + RETRY_S if has_failed else 0.0
        return None if answer is None or has_failed else answer.out

    async def used(self, job_id: str) -> Mapping[str, float] | None:
        """How long a job took, and the most memory that one of its processes had.

        Empty while there is no accounting. None while the job has no end there.
        """
        if not await self.is_available():
            return {}
        answer = await self._slurm(
            "sacct", "-n", "-P", "-j", job_id, "-o", parse_commands.USAGE_FORMAT
        )
        return None if answer.code else parse_commands.read_usage(answer.out)

    async def is_available(self) -> bool:
        """Whether it answers, or did at the last call."""
        await self.ended(["1"])
        return not self._retry_at
