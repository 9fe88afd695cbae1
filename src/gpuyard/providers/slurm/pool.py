"""The nodes of a pool on a Slurm cluster: jobs that take a whole node and join it to
the instance, until they are ended.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path

from gpuyard.config.pools import PoolSettings
from gpuyard.domain.jobconfig import JobStatus
from gpuyard.domain.offers import Offer
from gpuyard.providers.pool_hands import OWNER_PREFIX, PoolMachine, PoolOrder, PoolOwner
from gpuyard.providers.queue_pool import QueuePool
from gpuyard.providers.slurm.client import SlurmClient, SlurmRefusedError, SlurmRequest
from gpuyard.providers.slurm.config import SlurmSettings
from gpuyard.providers.slurm.records import SlurmRow, explain_reason
from gpuyard.providers.slurm.site import SlurmSite
from gpuyard.providers.slurm.supply import SlurmSupply

_OVER = re.compile(r"already completing or completed|Invalid job id")


class SlurmPool(QueuePool):
    """`PoolHands` of one pool. The comment of a job names the row of its node, and the
    instance whose it is: others may use the cluster under the same account.
    """

    def __init__(
        self,
        pool: PoolSettings,
        settings: SlurmSettings,
        slurm: SlurmClient,
        site: SlurmSite,
        supply: SlurmSupply,
        spool: Path,
        owner: PoolOwner,
    ) -> None:
        super().__init__(
            "slurm", pool, settings.poll_s, settings.currency, owner, settings.home
        )
        self._settings = settings
        self._slurm = slurm
        self._site = site
        self._supply = supply
        self._folder = spool / "pools"

    async def offers(self) -> Sequence[Offer]:
        """See QueuePool. Only whole nodes are taken."""
        await self._supply.refresh()
        return self._supply.offers()

    async def submit(self, order: PoolOrder, offer: Offer) -> str:
        """See QueuePool."""
        await self._site.make_folder(self._folder)
        output = self._folder / f"{order.name}.log"
        script = self.script(order, order.join_code)
        label = f"{order.owner}@{self.owner.installation}"
        try:
            return await self._slurm.submit(
                self._request(order, offer), script, label, output
            )
        except SlurmRefusedError as error:
            code = "CAPACITY" if error.resources else "REFUSED"
            raise self.error(f"Slurm: {error}", code) from None

    def _request(self, order: PoolOrder, offer: Offer) -> SlurmRequest:
        lifetime_s = self.pool.lifetime
        settings = self._settings
        return SlurmRequest(
            f"gpuyard-{order.name}",
            minutes=math.ceil(lifetime_s / 60) if lifetime_s else None,
            gpu=offer.gpu,
            gpus=offer.gpus,
            partition=offer.id.split("/")[1],
            account=settings.account or "",
            qos=settings.qos or "",
            constraint=settings.constraint or "",
            exclusive=True,
        )

    async def machines(self) -> Sequence[PoolMachine]:
        """See PoolHands."""
        rows = await self._slurm.queue()
        return [
            self._machine(row, row.attempt_id.partition("@")[0])
            for row in rows
            if self.is_own(row.attempt_id)
        ]

    def is_own(self, label: str) -> bool:
        """Whether a job with this comment is a node of a pool of this instance."""
        owner, _, installation = label.partition("@")
        if not owner.startswith(OWNER_PREFIX):
            return False
        if installation == self.owner.installation:
            return True
        return installation == self.older_label and self.owner.owns(owner)

    def _machine(self, row: SlurmRow, owner: str) -> PoolMachine:
        live = row.status in (JobStatus.PENDING, JobStatus.RUNNING, JobStatus.UNKNOWN)
        why = ""
        if row.status is JobStatus.PENDING:
            why = f"Slurm: {explain_reason(row.reason)}"
        elif not live:
            why = f"Slurm: {row.state}"
        return self.machine(
            owner,
            row.job_id,
            live=live,
            began_at=row.started_at,
            counts_from=row.started_at,
            why=why,
        )

    async def end(self, reference: str) -> None:
        """See PoolHands."""
        problem = await self._slurm.cancel(reference)
        if problem and not _OVER.search(problem):
            raise self.error(f"scancel: {problem}", "TIMEOUT")
