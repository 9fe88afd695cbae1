"""What Slurm's accounting (slurmdbd) says of jobs that have left the queue, on clusters that have it."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from gpuyard.domain.errors import ProviderError
from gpuyard.domain.jobconfig import JobStatus
from gpuyard.providers.slurm import text
from gpuyard.providers.slurm.site import Answer
from gpuyard.providers.slurm.text import Row

MISSING = "no accounting (slurmdbd): exit codes and end times of jobs that could not leave their own are missing"
# What is not there, or does not answer, is asked again after so long.
AGAIN_S = 60.0


class Accounts:
    """`sacct`, while it answers. `slurm` runs a command of Slurm's."""

    def __init__(self, slurm: Callable[..., Awaitable[Answer]]) -> None:
        self._slurm = slurm
        self._again_at = 0.0

    async def ended(self, job_ids: Sequence[str]) -> list[Row]:
        """Those of these jobs that are over; nothing while there are no accounts.

        One that still runs there may have ended long ago: Slurm loses ends on the way to slurmdbd.
        """
        if time.monotonic() < self._again_at:
            return []
        answer = None
        try:
            answer = await self._slurm("sacct", "-n", "-P", "-X", "-j", ",".join(job_ids), "-o", text.ACCOUNT_FORMAT)
        except ProviderError:
            pass  # its error reads like the controller's, which is asked without it
        finally:
            well = answer is not None and not answer.code
            self._again_at = 0.0 if well else time.monotonic() + AGAIN_S
        rows = text.read_accounts(answer.out) if answer and well else []
        return [row for row in rows if row.status not in (JobStatus.PENDING, JobStatus.RUNNING)]

    async def used(self, job_id: str) -> Mapping[str, float] | None:
        """How long a job took, and the most memory that a process of its had; nothing while there are no accounts, and
        None while they do not have its end."""
        if not await self.there():
            return {}
        answer = await self._slurm("sacct", "-n", "-P", "-j", job_id, "-o", text.USAGE_FORMAT)
        return None if answer.code else text.read_usage(answer.out)

    async def there(self) -> bool:
        """Whether they answer, or did at the last question."""
        await self.ended(["1"])
        return not self._again_at
