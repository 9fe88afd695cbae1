"""Machines that SkyPilot rents: how they are started, listed and ended."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

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
from gpuyard.providers.shared_call import SharedCall
from gpuyard.providers.skypilot import machines
from gpuyard.providers.skypilot.client import SkyPilotClient
from gpuyard.providers.skypilot.config import SkyPilotConfig

# For so long a market is left alone that SkyPilot could not provide.
_SOLD_OUT_S = 600.0
# For so long a machine is told of that SkyPilot lists no more.
_REMEMBERED_S = 600.0
RENT_ANYTHING = "to rent machines: no cloud is enabled in SkyPilot"
log = structlog.get_logger(__name__)


class SkyPilotApi(InstanceApi):
    """SkyPilot with its enabled clouds. A cluster of one machine is a machine."""

    def __init__(self, settings: SkyPilotConfig) -> None:
        self._settings = settings
        self._client = SkyPilotClient(settings)
        self._seen: dict[str, Instance] = {}
        self._orders: dict[str, Instance] = {}
        # With the time (monotonic seconds) at which each was missed.
        self._gone: dict[str, tuple[Instance, float]] = {}
        self._told_to_end: set[str] = set()
        # By type, zone and spot: until when (monotonic seconds), and what was said.
        self._sold_out: dict[tuple[str, str, bool], tuple[float, str]] = {}
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
        return [self._with_problem(market) for market in found]

    def _with_problem(self, market: Market) -> Market:
        key = market.type.name, market.zone, market.spot
        until, said = self._sold_out.get(key, (0.0, ""))
        return replace(market, problem=said) if time.monotonic() < until else market

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
        await self._client.call(
            "launch",
            name=name,
            script=machines.job_script(order.user_data, self._settings.silence_s),
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
        self._orders[name] = launched
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
        answer = await self._client.call("clusters", prefix=prefix)
        listed = {
            row["name"]: self._listed(machines.instance_of(row, installation))
            for row in answer["clusters"]
        }
        for name in answer["launching"]:
            if name in self._orders:
                listed.setdefault(name, self._orders[name])
        for name, fault in answer["failed"].items():
            self._note_failed(listed, name, fault)
        stopped = [one for one in listed.values() if not one.state.is_live]
        self._end_beside([one.id for one in stopped])
        return self._with_gone(listed)

    def _listed(self, instance: Instance) -> Instance:
        """With what SkyPilot does not say of a cluster that it is still making."""
        order = self._orders.get(instance.id)
        if order is None or instance.type:
            return instance
        return replace(instance, zone=order.zone, type=order.type, spot=order.spot)

    def _note_failed(
        self, listed: dict[str, Instance], name: str, fault: Mapping[str, Any]
    ) -> None:
        order = self._orders.get(name)
        if order is None:
            return
        said = fault["message"] or fault["kind"]
        if fault["kind"] == "ResourcesUnavailableError":
            until = time.monotonic() + _SOLD_OUT_S
            self._sold_out[order.type, order.zone, order.spot] = until, said
        known = listed.get(name, order)
        # What is left of it is ended.
        state = InstanceState.ENDING if name in listed else InstanceState.GONE
        listed[name] = replace(known, state=state, why=said)

    def _with_gone(self, listed: Mapping[str, Instance]) -> list[Instance]:
        """With those that were listed before: SkyPilot forgets a machine at once."""
        now = time.monotonic()
        for name in self._seen.keys() - listed.keys():
            seen = self._seen[name]
            was_taken = seen.spot and name not in self._told_to_end
            ended = replace(seen, state=InstanceState.GONE, interrupted=was_taken)
            self._gone[name] = ended, now
            self._orders.pop(name, None)
        self._seen = {
            name: one
            for name, one in listed.items()
            if one.state is not InstanceState.GONE
        }
        for name, (_, at) in list(self._gone.items()):
            if name in listed or now - at > _REMEMBERED_S:
                del self._gone[name]
                self._told_to_end.discard(name)
        return [*listed.values(), *(one for one, _ in self._gone.values())]

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

    def _end_beside(self, names: Sequence[str]) -> None:
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
