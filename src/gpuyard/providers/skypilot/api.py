"""Machines that SkyPilot rents: how they are started, listed and ended."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial

import structlog

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.instances.api import (
    Instance,
    InstanceApi,
    InstanceOrder,
    InstanceRef,
    InstanceState,
    ListPrice,
    Market,
    MissingRight,
)
from gpuyard.providers.instances.former_machines import FormerMachines
from gpuyard.providers.shared_call import SharedCall
from gpuyard.providers.skypilot import machines
from gpuyard.providers.skypilot.client import SkyPilotClient
from gpuyard.providers.skypilot.config import SkyPilotConfig
from gpuyard.providers.skypilot.launches import AcceptedLaunches

RENT_ANYTHING = "to rent machines: no cloud is enabled in SkyPilot"
log = structlog.get_logger(__name__)


class SkyPilotApi(InstanceApi):
    """SkyPilot with its enabled clouds. A cluster of one machine is a machine."""

    def __init__(self, settings: SkyPilotConfig) -> None:
        self._settings = settings
        self._client = SkyPilotClient(settings)
        self._launches = AcceptedLaunches()
        self._former = FormerMachines(self._was_taken)
        self._told_to_end: set[str] = set()
        self._ending: set[asyncio.Task[None]] = set()
        # One listing after the other: each tells by the last one what has gone.
        self._listings: dict[str, SharedCall[Sequence[Instance]]] = {}

    async def close(self) -> None:
        """See InstanceApi."""
        await self._client.close()

    # --- what there is to rent ---

    async def markets(self) -> Sequence[Market]:
        """See InstanceApi."""
        clouds = list(self._settings.clouds) or await self._client.call("clouds")
        if not clouds:
            return ()
        rows = await self._client.call("machine_types", clouds=clouds)
        today = datetime.now(UTC).date().isoformat()
        found = machines.markets_of(rows, with_spot=self._settings.spot, read_on=today)
        return [self._launches.with_problem(market) for market in found]

    async def list_prices(self) -> Sequence[ListPrice]:
        """What each type costs on demand, in each region. ProviderError."""
        today = datetime.now(UTC).date().isoformat()
        return [
            ListPrice(
                market.type.name,
                market.zone,
                market.price_per_hour,
                market.currency,
                "SkyPilot's catalogue",
                today,
            )
            for market in await self.markets()
            if not market.spot and market.price_per_hour is not None
        ]

    # --- starting ---

    async def launch(self, order: InstanceOrder) -> Instance:
        """See InstanceApi. SkyPilot accepts at once, and may fail minutes later."""
        found = await self.find(order.owner, order.installation)
        if found is not None and found.state.is_live:
            return found
        name = machines.cluster_name(order.owner, order.installation)
        script = machines.job_script(order.user_data, self._settings.silence_s)
        await self._client.call(
            "launch",
            name=name,
            command=machines.JOB_COMMAND,
            files={machines.JOB_FILE: script},
            idle_minutes=machines.IDLE_MINUTES,
            resources=machines.resources_of(order),
        )
        launched = Instance(
            id=name,
            region=machines.REGION,
            zone=order.zone,
            type=order.type,
            spot=order.spot,
            state=InstanceState.PENDING,
            owner=order.owner,
            launched_at=time.time(),
        )
        self._launches.add(launched)
        return launched

    # --- listing ---

    async def find(self, owner: str, installation: str) -> Instance | None:
        """See InstanceApi."""
        found = await self.instances(installation)
        return next((one for one in found if one.owner == owner), None)

    async def instances(self, installation: str) -> Sequence[Instance]:
        """See InstanceApi. Machines that have only stopped, whose disks still cost, are
        ended.
        """
        listing = self._listings.setdefault(
            installation, SharedCall(partial(self._list, installation))
        )
        return await listing()

    async def _list(self, installation: str) -> Sequence[Instance]:
        prefix = machines.cluster_prefix(installation)
        names_before = self._launches.names
        told_before = frozenset(self._told_to_end)
        answer = await self._client.call("clusters", prefix=prefix)
        listed = self._launches.machines_in(answer, installation, names_before)
        self._end_beside(one.id for one in listed if not one.state.is_live)
        found = self._former.with_gone(listed)
        self._told_to_end -= told_before - {one.id for one in found}
        return found

    def _was_taken(self, missing: Instance) -> bool:
        return missing.spot and missing.id not in self._told_to_end

    # --- ending ---

    async def end(self, refs: Sequence[InstanceRef]) -> None:
        """See InstanceApi."""
        names = [ref.id for ref in refs]
        self._told_to_end.update(names)
        ended = await asyncio.gather(
            *(self._client.call("down", name=name) for name in names),
            return_exceptions=True,
        )
        for name, error in zip(names, ended, strict=True):
            if error is not None:
                self._told_to_end.discard(name)
        for error in ended:
            if isinstance(error, BaseException):
                raise error

    def _end_beside(self, names: Iterable[str]) -> None:
        """End these while the caller goes on; each once."""
        for name in names:
            if name in self._told_to_end:
                continue
            self._told_to_end.add(name)
            ending = asyncio.create_task(self._end_stopped(name), name=f"end-{name}")
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def _end_stopped(self, name: str) -> None:
        try:
            await self._client.call("down", name=name)
        except ProviderError as error:
            # The next listing tries again.
            self._told_to_end.discard(name)
            log.warning(
                "a machine that has stopped cannot be deleted", error=str(error)
            )

    # --- rights ---

    async def missing_rights(self) -> Sequence[MissingRight]:
        """See InstanceApi: `sky check` tells what each cloud lacks."""
        enabled = await self._client.call("clouds")
        missing = [name for name in self._settings.clouds if name not in enabled]
        if not enabled and not missing:
            return [MissingRight("sky check", RENT_ANYTHING)]
        return [
            MissingRight(f"sky check {name}", f"to rent machines of {name}")
            for name in missing
        ]
