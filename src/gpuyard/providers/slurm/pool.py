"""The nodes of a pool on a Slurm cluster: jobs that take a whole node and join it to
the instance, until they are ended.
"""

import hashlib
import math
import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

from gpuyard.config.pools import PoolSettings
from gpuyard.domain.errors import ProviderError
from gpuyard.domain.gpus import resolve_gpu_class
from gpuyard.domain.jobconfig import JobStatus
from gpuyard.domain.offers import Offer
from gpuyard.providers.pool_hands import (
    OWNER_PREFIX,
    NodeSize,
    PoolMachine,
    PoolOrder,
)
from gpuyard.providers.slurm.client import SlurmClient, SlurmRefusedError, SlurmRequest
from gpuyard.providers.slurm.config import SlurmSettings
from gpuyard.providers.slurm.records import SlurmRow, explain_reason
from gpuyard.providers.slurm.site import SlurmSite
from gpuyard.providers.slurm.supply import SlurmSupply

# Its home goes with it. What is still there of it is ended by Slurm.
_SCRIPT = """\
#!/bin/sh
# A node of a pool of gpuyard: it joins, and runs jobs until it is ended.
umask 077
GPUYARD_HOME="$(mktemp -d /tmp/gpuyard-pool.XXXXXX)" || exit 1
export GPUYARD_HOME
cd "$GPUYARD_HOME" || exit 1
{{ {command} join {url} {code} --foreground; }} &
agent=$!
leave() {{
    trap - TERM
    kill "$agent" 2>/dev/null
    wait "$agent"
    cd / && rm -rf "$GPUYARD_HOME"
    exit 0
}}
trap leave TERM
wait "$agent"
cd / && rm -rf "$GPUYARD_HOME"
exit 1
"""
_OVER = re.compile(r"already completing or completed|Invalid job id")


class SlurmPool:
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
    ) -> None:
        self.poll_s = settings.poll_s
        self._pool = pool
        self._settings = settings
        self._slurm = slurm
        self._site = site
        self._supply = supply
        self._folder = spool / "pools"
        # Of a node, once the cluster was asked.
        self._price: Decimal | None = None
        home = str(Path(settings.home).absolute())
        self._mine = "@" + hashlib.sha256(home.encode()).hexdigest()[:12]

    async def size(self) -> NodeSize:
        """See PoolHands. Only whole nodes are taken."""
        offer = await self._offer()
        known = any(offer.capability)
        capability = ".".join(map(str, offer.capability)) if known else ""
        return NodeSize(
            offer.id,
            offer.cpus,
            offer.memory_gb,
            offer.gpus,
            offer.gpu,
            offer.gpu_gb,
            capability,
        )

    async def _offer(self) -> Offer:
        """The offer that the pool takes nodes from; ProviderError if there is none."""
        await self._supply.refresh()
        offers = self._supply.offers()
        wanted = self._pool.type
        found = [offer for offer in offers if _is_meant(offer, wanted)]
        if not found:
            known = ", ".join(sorted(offer.id for offer in offers)) or "none"
            raise ProviderError(
                f"type: the cluster has no {wanted or 'node with a GPU'}; it has:"
                f" {known}",
                "slurm",
                "SETTING",
            )
        limit = self._pool.max_price
        best = min(found, key=lambda offer: (offer.price_per_hour or 0, offer.id))
        if limit is not None and (best.price_per_hour or 0) > limit:
            raise ProviderError(
                f"max_price: {best.id} costs {best.price_per_hour}"
                f" {best.currency} an hour, and the pool pays at most {limit}",
                "slurm",
                "PRICE",
            )
        self._price = best.price_per_hour
        return best

    async def launch(self, order: PoolOrder) -> PoolMachine:
        """See PoolHands."""
        known = await self.find(order.owner)
        if known is not None:
            return known
        request = self._request(order, await self._offer())
        script = _SCRIPT.format(
            command=self._pool.command, url=order.join_url, code=order.join_code
        )
        await self._site.make_folder(self._folder)
        output = self._folder / f"{order.name}.log"
        label = order.owner + self._mine
        try:
            job_id = await self._slurm.submit(request, script, label, output)
        except SlurmRefusedError as error:
            code = "CAPACITY" if error.resources else "REFUSED"
            raise ProviderError(f"Slurm: {error}", "slurm", code) from None
        return PoolMachine(
            order.owner,
            job_id,
            live=True,
            price_per_hour=self._price,
            currency=self._settings.currency,
        )

    def _request(self, order: PoolOrder, offer: Offer) -> SlurmRequest:
        lifetime_s = self._pool.lifetime
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

    async def find(self, owner: str) -> PoolMachine | None:
        """See PoolHands."""
        found = await self.machines()
        return next((machine for machine in found if machine.owner == owner), None)

    async def machines(self) -> Sequence[PoolMachine]:
        """See PoolHands."""
        return [
            self._machine(row, row.attempt_id.removesuffix(self._mine))
            for row in await self._slurm.queue()
            if row.attempt_id.startswith(OWNER_PREFIX)
            and row.attempt_id.endswith(self._mine)
        ]

    def _machine(self, row: SlurmRow, owner: str) -> PoolMachine:
        live = row.status in (JobStatus.PENDING, JobStatus.RUNNING, JobStatus.UNKNOWN)
        ends_at = None
        if row.started_at and self._pool.lifetime:
            ends_at = row.started_at + self._pool.lifetime
        why = ""
        if row.status is JobStatus.PENDING:
            why = f"Slurm: {explain_reason(row.reason)}"
        elif not live:
            why = f"Slurm: {row.state}"
        return PoolMachine(
            owner,
            row.job_id,
            live,
            row.started_at,
            ends_at,
            why=why,
            price_per_hour=self._price,
            currency=self._settings.currency,
        )

    async def end(self, reference: str) -> None:
        """See PoolHands."""
        problem = await self._slurm.cancel(reference)
        if problem and not _OVER.search(problem):
            raise ProviderError(f"scancel: {problem}", "slurm", "TIMEOUT")


def _is_meant(offer: Offer, wanted: str | None) -> bool:
    """Whether the pool may take this offer's nodes: by its id, the rest of that, the
    name of its GPU or their class; without any, those that have a GPU.
    """
    if offer.problem:
        return False
    if wanted is None:
        return offer.gpus > 0
    if wanted in (offer.id, offer.id.partition("/")[2], offer.gpu):
        return True
    try:
        classes = resolve_gpu_class(wanted)
    except ValueError:
        return False
    return bool(offer.classes) and offer.classes <= classes
