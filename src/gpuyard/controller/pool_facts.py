"""What is known of the nodes of pools, from the view and from their providers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from gpuyard.controller.core import Core
from gpuyard.controller.pool_calls import LivePool
from gpuyard.controller.pool_health import why_lost, why_not_coming, why_sick
from gpuyard.controller.pool_rows import PoolRow
from gpuyard.domain.events import Event, Table
from gpuyard.domain.own_nodes import OWN_NODES
from gpuyard.providers.pool_hands import NodeSize
from gpuyard.scheduler.nodes import Device, Node
from gpuyard.scheduler.pool_demand import Wish, shares_on
from gpuyard.scheduler.pools import PoolNode, PoolStage

_MIB_PER_GB = 1024


class ModelNeeds(Protocol):
    """What is known of models and batches (`resource_manager/pool_needs.py`)."""

    def wishes(self) -> Sequence[Wish]:
        """What waits for a place, and no job stands for it."""
        ...

    def idle_since(self, node: Node, now: float) -> float | None:
        """Since when (UTC seconds) all that runs on a node is models that nobody uses;
        None if something else does.
        """
        ...

    def models_on(self, node: Node) -> Sequence[object]:
        """The models on a node, awake or asleep."""
        ...


class PoolFacts:
    """Remembers when each node worked last, and since when it is silent."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._used_at: dict[str, float] = {}
        self._silent_since: dict[str, float] = {}
        self.models: ModelNeeds | None = None

    def heard(self, events: Sequence[Event]) -> None:
        """Note which nodes get work: short jobs come and go between two looks."""
        for event in events:
            for change in event.changes:
                if change.table is Table.ATTEMPTS and change.values:
                    for place in change.values.get("placements") or ():
                        self._used_at[place["node_id"]] = event.at

    def has_worked(self, row: PoolRow) -> bool:
        """Whether the node has had work since this server started."""
        return row.node_id in self._used_at

    def node(
        self, pool: LivePool, row: PoolRow, cudas: Iterable[str], now: float
    ) -> PoolNode:
        """A node as the plan needs it."""
        machine = pool.machines.get(row.id)
        if row.node_id is None:
            fault = ""
            if row.state is PoolStage.BOOTING:
                fault = why_not_coming(row, machine, pool.settings, now)
            return PoolNode(row.id, row.state, row.asked_at, sick=fault)
        node = self._core.view.node(row.node_id)
        silent_s = self._silent_s(node, now)
        drivers: Mapping[str, str] = self._drivers(node) if cudas else {}
        return PoolNode(
            row.id,
            row.state,
            row.asked_at,
            self._idle_since(row, node, now),
            why_sick(node, machine, drivers, cudas, now),
            why_lost(node, silent_s, pool.settings),
        )

    def _idle_since(self, row: PoolRow, node: Node, now: float) -> float | None:
        models = self.models
        if models and row.state is PoolStage.DRAINING and models.models_on(node):
            return None  # they leave before it ends
        idle_since = row.joined_at or now
        if node.bookings:
            unused_since = models.idle_since(node, now) if models else None
            if unused_since is None:
                self._used_at[node.id] = now
                return None
            idle_since = unused_since
        return max(idle_since, self._used_at.get(node.id, 0.0))

    def _silent_s(self, node: Node, now: float) -> float:
        """For how many seconds the agent of the node has not been connected."""
        if node.state == "online":
            self._silent_since.pop(node.id, None)
            return 0.0
        return now - self._silent_since.setdefault(node.id, now)

    def _drivers(self, node: Node) -> Mapping[str, str]:
        rows = self._core.queries.gpus()
        found = (row for row in rows if row["node_id"] == node.id)
        return {row["uuid"]: row["driver"] or "" for row in found}

    def like(self, pool: LivePool, rows: Sequence[PoolRow]) -> Node | None:
        """An empty node like those of the pool; None while their size is not known.

        What a node has turned out to have is better known than what its provider says.
        """
        for row in reversed(rows):
            if row.state is PoolStage.JOINED and row.node_id:
                return _emptied(self._core.view.node(row.node_id))
        return _of_size(pool.size) if pool.size else None

    def waiting_cudas(self, like: Node) -> list[str]:
        """The versions of CUDA in the images of waiting jobs that such a node could
        run.
        """
        heads = [
            job.id
            for job, _ in self._core.view.queue.kinds()
            if job.shape.image and shares_on(like, job.shape)
        ]
        if not heads:
            return []
        known = {image.reference: image.cuda for image in self._core.images}
        specs = self._core.queries.specs(set(heads))
        images = {str(body.get("image")) for body in specs.values()}
        return sorted({cuda for name in images if (cuda := known.get(name))})


def _emptied(node: Node) -> Node:
    """The node as it would be with nothing on it and nothing wrong with it."""
    made = _new(node.containers, node.cpus, node.memory_gb)
    for device in node.devices.values():
        made.devices[device.uuid] = Device(
            device.uuid,
            made.id,
            device.index,
            device.name,
            device.memory_mb,
            device.compute_capability,
        )
    made.rebuild()
    return made


def _of_size(size: NodeSize) -> Node:
    made = _new("", size.cpus, size.memory_gb)
    for index in range(size.gpus):
        uuid = f"new-{index}"
        memory_mb = size.gpu_memory_gb * _MIB_PER_GB
        capability = size.capability or None
        made.devices[uuid] = Device(
            uuid, made.id, index, size.gpu, memory_mb, capability
        )
    made.rebuild()
    return made


def _new(containers: str, cpus: float, memory_gb: float) -> Node:
    return Node(
        "new",
        "new",
        OWN_NODES,
        containers,
        state="online",
        joined=True,
        cpus=cpus,
        memory_gb=memory_gb,
    )
