"""The nodes of a pool on a Kubernetes cluster: pods that join the instance, until they
are ended. Each is of a Job of its own, so that a second one of its name is refused.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from gpuyard.config.pools import PoolSettings
from gpuyard.domain.errors import ProviderError
from gpuyard.domain.offers import Offer
from gpuyard.providers.base import TRANSIENT
from gpuyard.providers.kubernetes import pod_state, pool_job
from gpuyard.providers.kubernetes.api import KubernetesApi
from gpuyard.providers.kubernetes.config import KubernetesConfig
from gpuyard.providers.kubernetes.creation import create_once
from gpuyard.providers.kubernetes.fields import (
    Json,
    name_of,
    objects_at,
    text_at,
    value_at,
)
from gpuyard.providers.kubernetes.supply import Supply
from gpuyard.providers.kubernetes.times import instant
from gpuyard.providers.pool_hands import PoolMachine, PoolOrder, PoolOwner
from gpuyard.providers.queue_pool import SETTING, QueuePool

# Of a node's cores and memory: the daemons of the cluster have the rest.
_PART = 0.8
_SHORTEST_POLL_S = 1.0


class KubernetesPool(QueuePool):
    """`PoolHands` of one pool. `supply()` reads what the cluster has."""

    def __init__(
        self,
        pool: PoolSettings,
        settings: KubernetesConfig,
        api: KubernetesApi,
        supply: Callable[[], Awaitable[Sequence[Supply]]],
        owner: PoolOwner,
    ) -> None:
        poll_s = max(settings.poll_s, _SHORTEST_POLL_S)
        super().__init__(
            settings.provider, pool, poll_s, settings.currency, owner, settings.home
        )
        self._settings = settings
        self._api = api
        self._read_supply = supply
        self._supply: dict[str, Supply] = {}

    async def offers(self) -> Sequence[Offer]:
        """See QueuePool: a node takes all GPUs of a node of the cluster, and most of
        its cores and memory.
        """
        if not self.pool.image:
            raise self.error(
                "image: the pool names none; name one that has gpuyard, or one that has"
                " Python, and what to `install` there",
                SETTING,
            )
        found = await self._read_supply()
        self._supply = {supply.offer.id: supply for supply in found}
        return [
            replace(
                supply.offer,
                cpus=_PART * supply.offer.cpus,
                memory_gb=_PART * supply.offer.memory_gb,
            )
            for supply in found
            if supply.offer.spot == self.pool.spot
        ]

    async def submit(self, order: PoolOrder, offer: Offer) -> str:
        """See QueuePool."""
        job = pool_job.job_of(
            order,
            pool_job.labels_of(order, self.owner.installation),
            self._settings,
            replace(self._supply[offer.id], offer=offer),
            self.pool.image or "",
            self.script(order, '"$JOIN_CODE"'),
            self.pool.lifetime,
        )
        await create_once(self._api, self._api.jobs, job)
        await self._let_run(order)
        return name_of(job)

    async def _let_run(self, order: PoolOrder) -> None:
        """Make the Secret of a Job that there is, unless it exists, and let it run.
        If that is refused, the Job goes.
        """
        try:
            await self._complete(order)
        except ProviderError as error:
            if error.error_code not in TRANSIENT:
                await self.end(pool_job.name_of(order.owner))
            raise

    async def _complete(self, order: PoolOrder) -> None:
        path = f"{self._api.jobs}/{pool_job.name_of(order.owner)}"
        made = await self._api.call("GET", path)
        labels = pool_job.labels_of(order, self.owner.installation)
        secret = pool_job.secret_of(order, labels, made)
        await create_once(self._api, f"{self._api.namespaced}/secrets", secret)
        # With Kueue it waits for Kueue.
        if not self._settings.queue and value_at(made, "spec", "suspend"):
            await self._api.call("PATCH", path, {"spec": {"suspend": False}})

    async def launch(self, order: PoolOrder) -> PoolMachine:
        """See PoolHands. A Job that is there may lack its Secret, or wait to be let
        run: each step is repeated, and does nothing if it was done.
        """
        known = await self.find(order.owner)
        if known is None:
            reference = await self.submit(order, await self._offer())
            return self.machine(order.owner, reference, live=True)
        if known.live:
            await self._let_run(order)
        return known

    async def machines(self) -> Sequence[PoolMachine]:
        """See PoolHands."""
        instance = self.owner.installation
        selector = pool_job.selector_of(instance, self.older_label)
        query = {"labelSelector": selector}
        jobs, _ = await self._api.list_objects(self._api.jobs, **query)
        pods, _ = await self._api.list_objects(self._api.pods, **query)
        by_owner = {_owner_of(pod): pod for pod in pods}
        own = [
            job
            for job in jobs
            if pool_job.instance_of(job) == instance or self.owner.owns(_owner_of(job))
        ]
        return [self.machine_of(job, by_owner.get(_owner_of(job))) for job in own]

    def machine_of(self, job: Json, pod: Json | None) -> PoolMachine:
        """The node of this Job, whose pod may not be there."""
        failed = pod_state.true_condition(job, "Failed")
        over = failed or pod_state.true_condition(job, "Complete")
        is_deleted = bool(value_at(job, "metadata", "deletionTimestamp"))
        is_taken_back = bool(value_at(pod, "metadata", "deletionTimestamp"))
        return self.machine(
            _owner_of(job),
            name_of(job),
            # Until all of it has gone, it may have to be deleted by force.
            live=is_deleted or not over,
            began_at=self._started(pod),
            # The deadline of a Job counts while its pod waits, too.
            counts_from=self._started(job),
            leaving=is_taken_back and not is_deleted,
            why=_why(failed, pod),
        )

    def _started(self, item: Json | None) -> float | None:
        """When a Job or a pod has started, by our clock (UTC seconds)."""
        started = instant(text_at(item, "status", "startTime")) if item else None
        return None if started is None else started - self._api.ahead_s

    async def end(self, reference: str) -> None:
        """See PoolHands. The Job goes after its pod; if the pod does not go in time,
        because its node does not answer, it is deleted by force.
        """
        path = f"{self._api.jobs}/{reference}"
        job = await self._api.call_or_none("GET", path)
        if job is None:
            return
        asked_at = instant(text_at(job, "metadata", "deletionTimestamp"))
        patience_s = pool_job.GRACE_S + self._settings.force_after_s
        now = time.time() + self._api.ahead_s
        policy = "Foreground"
        if asked_at is not None and now - asked_at > patience_s:
            await self._force(_owner_of(job))
            # Only without the Job does the cluster remove such a pod.
            policy = "Background"
        await self._api.call_or_none("DELETE", path, propagationPolicy=policy)

    async def _force(self, owner: str) -> None:
        query = {"labelSelector": pool_job.selector_of_node(owner)}
        pods, _ = await self._api.list_objects(self._api.pods, **query)
        for pod in pods:
            path = f"{self._api.pods}/{name_of(pod)}"
            await self._api.call_or_none("DELETE", path, gracePeriodSeconds=0)


def _owner_of(item: Json) -> str:
    """The row of the node whose Job or pod this is."""
    return text_at(item, "metadata", "labels", pool_job.NODE)


def _why(failed: Json | None, pod: Json | None) -> str:
    """Why a node has ended, or waits, in the cluster's words; empty if it runs."""
    last = text_at(pod_state.terminated(pod), "message") if pod else ""
    if failed is not None:
        told = last.strip().rpartition("\n")[2] or text_at(failed, "message")
        return f"Kubernetes: {told or text_at(failed, 'reason')}"
    for condition in objects_at(pod, "status", "conditions"):
        is_waiting = condition.get("status") == "False"
        if condition.get("type") == "PodScheduled" and is_waiting:
            return f"Kubernetes: {text_at(condition, 'message')}"
    return ""
