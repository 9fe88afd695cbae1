"""Chooses the nodes where an attempt may run."""

import time
from collections.abc import Awaitable, Callable, Iterable
from decimal import Decimal

from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.errors import InsufficientResourcesError
from gpuyard.domain.jobconfig import GpuSpec
from gpuyard.domain.offers import Offer
from gpuyard.providers.kubernetes.config import KubernetesConfig
from gpuyard.providers.kubernetes.manifest import Target
from gpuyard.providers.kubernetes.supply import Supply
from gpuyard.providers.placing import has_room, names_kind, suits, words_of

# A node that has refused a pod gets none for this long.
_AVOIDED_S = 300.0


class Places:
    """What the cluster supplies, by offer, and the nodes that have just refused a pod.

    `refresh` reads the supply again.
    """

    def __init__(
        self,
        settings: KubernetesConfig,
        provider: str,
        refresh: Callable[[], Awaitable[object]],
    ) -> None:
        self._settings = settings
        self._provider = provider
        self._refresh = refresh
        self._supply: dict[str, Supply] = {}
        # By node, in monotonic seconds.
        self._avoided_until: dict[str, float] = {}

    def update(self, found: Iterable[Supply]) -> None:
        """The cluster now supplies this."""
        self._supply = {supply.offer.id: supply for supply in found}

    def avoid(self, nodes: Iterable[str]) -> None:
        """These nodes have refused a pod."""
        until = time.monotonic() + _AVOIDED_S
        for node in nodes:
            self._avoided_until[node] = until

    async def target(self, order: AttemptOrder) -> Target:
        """Where the attempt may run; InsufficientResourcesError if there is no place.

        A job without GPUs stays off nodes that keep such jobs out, unless nothing else
        suits it.
        """
        chosen = await self._chosen(order)
        need = order.gpu_spec
        fitting = chosen or await self._fitting(need)
        # Without a kind of GPU that it must have, it may run on any node.
        is_bound = chosen is not None or names_kind(need)
        price = fitting.offer.hourly(need.gpu_count, need.vcpus or 1.0, order.nodes)
        tolerations = (
            self._settings.tolerations if need.gpu_count else fitting.tolerations
        )
        now = time.monotonic()
        avoided = [name for name, until in self._avoided_until.items() if until > now]
        return Target(
            selector=fitting.selector if is_bound else {},
            tolerations=tolerations,
            avoided=avoided,
            price=price or Decimal(0),
        )

    async def _chosen(self, order: AttemptOrder) -> Supply | None:
        """The supply of the order's offer; None when the order names none.

        InsufficientResourcesError when there is no such offer any more.
        """
        wanted = order.offer
        if not wanted:
            return None
        if wanted not in self._supply:
            await self._refresh()
        if wanted not in self._supply:
            message = f"{wanted} is not on offer any more."
            raise InsufficientResourcesError(message, self._provider, order.gpu_spec)
        chosen = self._supply[wanted]
        if not has_room(chosen.offer, order.gpu_spec):
            raise self._too_much(order.gpu_spec)
        return chosen

    async def _fitting(self, need: GpuSpec) -> Supply:
        """A supply that has what the job asks for, if possible one that is ready.

        Refused otherwise: a pod that fits on no node would wait forever.
        """
        found = [one for one in self._supply.values() if suits(one.offer, need)]
        if not found:
            # There may be nodes that were not there before.
            await self._refresh()
            found = [one for one in self._supply.values() if suits(one.offer, need)]
        if not found:
            raise self._too_much(need)
        return min(found, key=lambda one: _rank(one.offer, need))

    def _too_much(self, need: GpuSpec) -> InsufficientResourcesError:
        return InsufficientResourcesError(
            f"No node of the cluster has {words_of(need)}.", self._provider, need
        )


def _rank(offer: Offer, need: GpuSpec) -> tuple[bool, bool, bool]:
    """A sort key: the offer for a job that names none comes first."""
    is_for_others = offer.for_gpu_jobs and not need.gpu_count
    return is_for_others, bool(offer.problem), offer.spot
