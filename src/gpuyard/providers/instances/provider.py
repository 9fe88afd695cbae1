"""Jobs on rented machines: what a provider of any cloud is, given its `InstanceApi`.

Each attempt gets a machine of its own. The machine joins the instance by itself, as a
workstation does, and gets its attempt over the link of its agent; so nothing of a job
is in what the cloud is told.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, ClassVar

import structlog

from gpuyard.config.pools import PoolSettings
from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.contents import DatasetSources, Stores
from gpuyard.domain.errors import (
    InsufficientResourcesError,
    JobNotFoundError,
    ProviderError,
)
from gpuyard.domain.jobconfig import CostInfo, JobResult
from gpuyard.domain.offers import Offer
from gpuyard.domain.reasons import Reason
from gpuyard.providers.base import (
    TRANSIENT,
    LogPiece,
    QueueProvider,
    Sink,
    refuse_container,
    with_logs,
)
from gpuyard.providers.instances.agents import RentedAgents
from gpuyard.providers.instances.api import (
    Instance,
    InstanceApi,
    InstanceOrder,
    Market,
    MissingRight,
)
from gpuyard.providers.instances.boot_plan import BootPlan
from gpuyard.providers.instances.cloud_init import user_data
from gpuyard.providers.instances.fleet import (
    RentedFleet,
    RentedListing,
    RentedMachine,
)
from gpuyard.providers.instances.markets import (
    cheapest,
    market_of,
    offer_id,
    offer_of,
    offered,
    spot_bid,
)
from gpuyard.providers.instances.pool import InstancePool
from gpuyard.providers.instances.renting_instance import RentingInstance
from gpuyard.providers.instances.settings import InstanceSettings
from gpuyard.providers.instances.states import MachineFacts, result_of
from gpuyard.providers.pool_hands import PoolOwner

# An invitation outlives the time in which its machine must have joined.
_INVITED_FOR = 2.0
_NAME_DIGITS = 8
# A machine whose attempt has ended is swept this soon after it was seen.
_SWEEP_AGAIN_S = 5.0
log = structlog.get_logger(__name__)


class RentedProvider(QueueProvider):
    """Attempts on machines that are rented for them."""

    PROVIDER_NAME: ClassVar[str] = "rented"
    containers: ClassVar[bool] = True
    image_is_optional: ClassVar[bool] = True
    agents_report: bool = True

    def __init__(
        self, config: Mapping[str, Any], api: InstanceApi, settings: InstanceSettings
    ) -> None:
        super().__init__(config)
        self.api = api
        self.settings = settings
        self.poll_s = settings.poll_s
        self.offers_s = settings.offers_s
        self.max_pending = settings.max_pending
        self.concurrency = settings.concurrency
        self.fleet = RentedFleet(self.PROVIDER_NAME, api, self._installation)
        self._nodes: RentingInstance | None = None
        self._agents: RentedAgents | None = None
        self._markets: dict[str, Market] = {}
        self._news = asyncio.Event()
        # Attempts whose end was asked for.
        self._stopped: set[str] = set()
        # When it was seen that they were over (UTC seconds): until then they are paid.
        self._over_at: dict[str, float] = {}
        # Attempts that were told that their machine is taken back.
        self._warned: set[str] = set()
        self._sweeping: asyncio.Task[None] | None = None

    # --- life cycle ---

    def attach(self, nodes: RentingInstance) -> None:
        """Get what only the instance can do; called before `start`."""
        self._nodes = nodes
        self._agents = RentedAgents(self.PROVIDER_NAME, nodes, self._news.set)

    @property
    def nodes(self) -> RentingInstance:
        """The instance; ProviderError where there is none."""
        if self._nodes is None:
            raise self._unattached()
        return self._nodes

    def _unattached(self) -> ProviderError:
        message = "Machines are rented by a gpuyard server only: they have to join one."
        return ProviderError(message, self.PROVIDER_NAME, "UNSUPPORTED")

    @property
    def agents(self) -> RentedAgents:
        """The agents of its machines; ProviderError as `nodes`."""
        if self._agents is None:
            raise self._unattached()
        return self._agents

    def _installation(self) -> str:
        return self.nodes.installation

    def hand_out(self, stores: Stores, datasets: DatasetSources | None = None) -> None:
        """As NodeProvider's."""
        self.agents.link.hand_out(stores, datasets)

    async def start(self, sink: Sink) -> None:
        """See GpuProviderInterface. The agents report to the instance itself."""
        await self.agents.start()
        self._sweeping = asyncio.create_task(self._sweep(), name="sweep-machines")

    async def close(self) -> None:
        """See GpuProviderInterface. Machines go on."""
        if self._sweeping:
            self._sweeping.cancel()
        if self._agents:
            await self._agents.close()
        await self.api.close()

    async def _sweep(self) -> None:
        """End what nobody needs, also what an earlier server has left."""
        while True:
            try:
                await self.fleet.sweep(self.nodes.owns)
            except ProviderError as error:
                log.warning(
                    "the cloud cannot be asked for machines that nobody needs",
                    provider=self.PROVIDER_NAME,
                    error=str(error),
                )
            soon = self.fleet.has_unneeded
            usual_s = self.settings.sweep_s
            await asyncio.sleep(min(_SWEEP_AGAIN_S, usual_s) if soon else usual_s)

    # --- the account ---

    async def missing_rights(self) -> Sequence[MissingRight]:
        """See GpuProviderInterface."""
        return await self.api.missing_rights()

    # --- what there is to rent ---

    async def offers(self) -> Sequence[Offer]:
        """See GpuProviderInterface: one for each market."""
        self.nodes.refuse_without_door()
        markets = await self.api.markets()
        found = offered(markets, self.PROVIDER_NAME, self.settings)
        self._markets = {
            offer_id(self.PROVIDER_NAME, market): market for market in found
        }
        if found:
            self.currency = found[0].currency
        return [offer_of(self.PROVIDER_NAME, market) for market in found]

    async def _market(self, order: AttemptOrder) -> Market:
        if not self._markets:
            await self.offers()
        if order.offer:
            found = self._markets.get(order.offer)
            what = order.offer
        else:
            found = cheapest(self.PROVIDER_NAME, self._markets.values(), order)
            what = "a machine with what the job asks for"
        if found is None:
            raise self._insufficient(f"{what} cannot be rented now.", order)
        return found

    def _insufficient(
        self, message: str, order: AttemptOrder
    ) -> InsufficientResourcesError:
        return InsufficientResourcesError(message, self.PROVIDER_NAME, order.gpu_spec)

    # --- submission ---

    async def submit_attempt(self, order: AttemptOrder) -> str:
        """See GpuProviderInterface. The cloud itself starts no second machine for one
        attempt, so the call may be repeated.
        """
        self._refuse_unsupported(order)
        market = await self._market(order)
        name = f"{self.PROVIDER_NAME}-{order.attempt_id[-_NAME_DIGITS:]}"
        for_s = self.settings.boot_timeout_s * _INVITED_FOR
        invited = await self.nodes.invite(order, name, for_s)
        boot = BootPlan(
            join_url=self.settings.server_url or invited.url,
            join_code=invited.code,
            node_name=name,
            install=self.settings.install,
            silence_s=self.settings.silence_s,
            needs_gpus=order.gpu_spec.gpu_count,
            needs_docker=order.image is not None,
            spot=market.spot,
            cloud=self.PROVIDER_NAME,
        )
        instance = await self._launch(order, market, boot)
        self._news.set()
        return self.fleet.launched(instance)

    def _refuse_unsupported(self, order: AttemptOrder) -> None:
        if not order.image:
            refuse_container(order, self.PROVIDER_NAME)
        if order.retries:
            message = (
                f"retry_count is {order.retries}, and a rented machine runs a job once;"
                " submit it to the gpuyard server, which tries it again."
            )
            raise ProviderError(message, self.PROVIDER_NAME, "UNSUPPORTED")
        if order.nodes > 1:
            message = f"resources.nodes is {order.nodes}; a rented job has one machine."
            raise ProviderError(message, self.PROVIDER_NAME, "UNSUPPORTED")

    def _instance_order(
        self, order: AttemptOrder, market: Market, boot: BootPlan
    ) -> InstanceOrder:
        return InstanceOrder(
            owner=order.attempt_id,
            installation=self._installation(),
            name=boot.node_name,
            type=market.type.name,
            region=market.region,
            zone=market.zone,
            spot=market.spot,
            user_data=user_data(boot),
            disk_gb=self.settings.disk_gb,
            max_price=spot_bid(self.PROVIDER_NAME, market, self.settings),
            image=self.settings.image,
        )

    async def _launch(
        self, order: AttemptOrder, market: Market, boot: BootPlan
    ) -> Instance:
        """The machine. What the cloud refuses here it may grant elsewhere, or later: so
        no job fails of it, and the offer is left alone for a while.
        """
        try:
            return await self.api.launch(self._instance_order(order, market, boot))
        except ProviderError as error:
            if error.error_code in TRANSIENT:
                raise
            raise self._insufficient(str(error), order) from None

    async def find_by_attempt(self, attempt_id: str) -> str | None:
        """See GpuProviderInterface."""
        found = await self.api.find(attempt_id, self._installation())
        return self.fleet.launched(found) if found else None

    def pool_hands(self, settings: PoolSettings, owner: PoolOwner) -> InstancePool:
        """See GpuProviderInterface."""
        return InstancePool(
            self.PROVIDER_NAME, settings, self.settings, self.api, self._installation
        )

    # --- polling ---

    async def news(self, timeout_s: float) -> None:
        """See GpuProviderInterface."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), timeout_s)
        self._news.clear()

    async def poll_jobs(self, job_ids: Sequence[str]) -> Mapping[str, JobResult]:
        """See GpuProviderInterface: all machines are asked for at once."""
        known = await self.fleet.read(self.poll_s / 2)
        now = time.time()
        results: dict[str, JobResult] = {}
        for job_id in job_ids:
            attempt_id = self._attempt_or_none(job_id)
            if not attempt_id:
                continue
            facts = self._facts(job_id, attempt_id, known.get(job_id))
            await self._warn_interrupted(attempt_id, facts)
            at = self._over_at.get(job_id, now)
            result = result_of(job_id, facts, self.settings, at)
            if result.status.is_over:
                self._over_at.setdefault(job_id, now)
            results[job_id] = result
        return results

    def _facts(
        self, job_id: str, attempt_id: str, instance: Instance | None
    ) -> MachineFacts:
        agents = self.agents
        node_id = self.nodes.node_of(attempt_id)
        known_s = self.fleet.known_s(job_id)
        return MachineFacts(
            self.PROVIDER_NAME,
            instance,
            known_s,
            away_s=agents.away_s(node_id, known_s) if node_id else 0.0,
            joined=bool(node_id),
            fault=agents.faults.get(attempt_id, ""),
            started_at=agents.started.get(attempt_id),
            end=agents.ends.get(attempt_id),
            stopped=attempt_id in self._stopped,
            node_id=node_id,
            gpu_uuids=agents.gpus.get(attempt_id, ()),
        )

    async def _warn_interrupted(self, attempt_id: str, facts: MachineFacts) -> None:
        """The cloud will take the machine back: let the attempt save its work."""
        instance = facts.instance
        is_notice = instance and instance.interrupted and instance.state.is_live
        if not is_notice or facts.end or attempt_id in self._warned:
            return
        if not self.agents.may_run(attempt_id):
            return
        if await self.agents.stop_soon(attempt_id, Reason.PREEMPTED):
            self._warned.add(attempt_id)

    async def get_job_status(self, job_id: str) -> JobResult:
        """See GpuProviderInterface."""
        result = (await self.poll_jobs([job_id])).get(job_id)
        if result is None:
            raise JobNotFoundError(job_id, self.PROVIDER_NAME)
        return await with_logs(self, result)

    def _attempt_or_none(self, job_id: str) -> str:
        """The attempt of a machine; empty if it is unknown."""
        instance = self.fleet.known.get(job_id)
        return instance.owner if instance else self.nodes.attempt_of(job_id)

    async def _attempt(self, job_id: str) -> str:
        """The same; JobNotFoundError."""
        attempt_id = self._attempt_or_none(job_id)
        if not attempt_id:
            await self.fleet.read()
            attempt_id = self._attempt_or_none(job_id)
        if not attempt_id:
            raise JobNotFoundError(job_id, self.PROVIDER_NAME)
        return attempt_id

    # --- ending ---

    async def stop_job(self, job_id: str, *, checkpoint: bool) -> bool:
        """See GpuProviderInterface."""
        attempt_id = await self._attempt(job_id)
        instance = self.fleet.known.get(job_id)
        is_gone = instance is not None and not instance.state.is_live
        if attempt_id in self.agents.ends or is_gone:
            return False
        self._stopped.add(attempt_id)
        if self.agents.may_run(attempt_id):
            reason = Reason.PREEMPTED if checkpoint else Reason.CANCELLED
            try:
                await self.agents.stop(attempt_id, reason, checkpoint=checkpoint)
            except ProviderError:
                if checkpoint:
                    raise
            else:
                return True
        await self.fleet.end([job_id])
        self._news.set()
        return True

    async def forget_job(self, job_id: str) -> None:
        """See GpuProviderInterface: the machine ends, and is no node any more."""
        attempt_id = self._attempt_or_none(job_id)
        self._over_at.pop(job_id, None)
        try:
            await self.fleet.end([job_id])
        finally:
            if attempt_id:
                self.agents.forget(attempt_id)
                self._stopped.discard(attempt_id)
                self._warned.discard(attempt_id)
                await self.nodes.forget(attempt_id)

    # --- output ---

    async def stream_logs(
        self, job_id: str, *, lines: int | None, follow: bool
    ) -> AsyncIterator[bytes]:
        """See GpuProviderInterface."""
        pieces = self.stream_log_pieces(job_id, offset=0, lines=lines, follow=follow)
        async for piece in pieces:
            yield piece.data

    async def stream_log_pieces(
        self, job_id: str, *, offset: int, lines: int | None, follow: bool
    ) -> AsyncIterator[LogPiece]:
        """See GpuProviderInterface. JobNotFoundError once the machine has ended."""
        attempt_id = await self._attempt(job_id)
        while self._waits(job_id, attempt_id):
            if not follow:
                return
            await asyncio.sleep(self.poll_s)
            await self.fleet.read(self.poll_s)
        node_id = self.nodes.node_of(attempt_id)
        if not self.agents.is_connected(node_id):
            raise self._no_log(job_id, attempt_id)
        pieces = self.agents.link.stream_log_pieces_of(
            node_id, attempt_id, offset=offset, lines=lines, follow=follow
        )
        async for piece in pieces:
            yield piece

    def _is_live(self, job_id: str) -> bool:
        instance = self.fleet.known.get(job_id)
        return instance is not None and instance.state.is_live

    def _waits(self, job_id: str, attempt_id: str) -> bool:
        """Whether nothing of it has run yet, and it may: its log is empty."""
        is_over = job_id in self._over_at or self.nodes.is_recorded(attempt_id)
        cannot_start = is_over or attempt_id in self.agents.faults
        may_run = self.agents.may_run(attempt_id)
        return self._is_live(job_id) and not may_run and not cannot_start

    def _no_log(self, job_id: str, attempt_id: str) -> ProviderError:
        # An agent whose attempt has ended is not let in again.
        is_gone = not self._is_live(job_id) or self.nodes.is_recorded(attempt_id)
        if is_gone or not self.agents.may_run(attempt_id):
            return JobNotFoundError(job_id, self.PROVIDER_NAME)
        return ProviderError(
            "The machine of the job is not connected.",
            self.PROVIDER_NAME,
            "NOT_CONNECTED",
        )

    # --- cost and health ---

    async def get_cost_info(self, job_id: str) -> CostInfo:
        """From the launch of the machine until now, or until its end if that is known:
        the cloud bills the time in which it boots, too.
        """
        await self._attempt(job_id)
        instance = self.fleet.known.get(job_id)
        total = Decimal(0)
        if instance is not None:
            at = self._over_at.get(job_id, time.time())
            total = self._priced(instance, at).cost or total
        return CostInfo(job_id, total, self.currency, {"compute": total})

    async def machines(self, max_age_s: float) -> RentedListing:
        """Those that the cloud has for us, as it said at most `max_age_s` seconds ago,
        and never before the last that was ended. ProviderError.
        """
        known = await self.fleet.read(max_age_s)
        now = time.time()
        machines = [
            self._priced(instance, now)
            for instance in known.values()
            if instance.state.is_live
        ]
        return RentedListing(machines, self.fleet.told_at)

    def _priced(self, instance: Instance, now: float) -> RentedMachine:
        market = market_of(instance, self._markets.values())
        return RentedMachine.of(instance, market, self.currency, now)

    async def health_check(self) -> dict[str, Any]:
        """See GpuProviderInterface."""
        try:
            known = await self.fleet.read(self.poll_s)
        except ProviderError as error:
            return {"status": "unhealthy", "message": str(error)}
        live = [one for one in known.values() if one.state.is_live]
        return {"status": "healthy", "machines": len(live)}
