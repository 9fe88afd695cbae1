"""Which GPUs each advance reservation gets.

They are chosen in the order in which the reservations begin. So as many as there are
GPUs at each moment find some, however they overlap. Each keeps the GPUs on which jobs
of its holder run, then those that it had. It avoids GPUs whose jobs may outlast its
begin, and those that another reservation must have.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gpuyard.domain.gpus import resolve_gpu_class
from gpuyard.domain.shape import Placement
from gpuyard.scheduler.advance import AdvanceReservation
from gpuyard.scheduler.nodes import Device, Node
from gpuyard.scheduler.reservation import Reservations
from gpuyard.scheduler.view import View

Preference = Callable[[AdvanceReservation, Device], int]
"""The less, the better is it that the reservation gets this GPU."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a reservation gets. `lacking`: how many GPUs it does not; a node that is
    another's counts as one.
    """

    devices: tuple[Device, ...] = ()
    node_id: str = ""
    lacking: int = 0


@dataclass(slots=True)
class _Choice:
    """The GPUs of these nodes, and who has which meanwhile."""

    nodes: Sequence[Node]
    reservations: Sequence[AdvanceReservation]
    prefer: Preference
    made: dict[str, Chosen] = field(default_factory=dict[str, Chosen])
    by_id: dict[str, Node] = field(init=False)

    def __post_init__(self) -> None:
        self.by_id = {node.id: node for node in self.nodes}

    def make(self) -> dict[str, Chosen]:
        for one in self.reservations:
            self.made[one.id] = self._choose(one)
        return self.made

    def _choose(self, wanted: AdvanceReservation) -> Chosen:
        taken: set[str] = set()
        for other in self.reservations:
            if other.id in self.made and other.overlaps(wanted):
                chosen = self.made[other.id]
                taken.update(device.uuid for device in chosen.devices)
                taken.add(chosen.node_id)
        nodes = [node for node in self.nodes if _is_named(wanted.node, node)]
        if wanted.gpus is None:
            return _whole_node(nodes, taken)
        free = [
            device
            for node in nodes
            if node.id not in taken
            for device in node.devices.values()
            if device.uuid not in taken and _suits(wanted, device)
        ]
        later = self._with_needs(wanted)
        cost = {device.uuid: self._cost(wanted, device, later) for device in free}
        devices = _cheapest(free, cost, wanted.gpus)
        return Chosen(devices, lacking=wanted.gpus - len(devices))

    def _with_needs(self, wanted: AdvanceReservation) -> list[AdvanceReservation]:
        """Those that are chosen later, and for which not any GPU will do."""
        return [
            other
            for other in self.reservations
            if other.id not in self.made
            and other is not wanted
            and other.overlaps(wanted)
            and (other.node or other.gpu_class)
        ]

    def _cost(
        self,
        wanted: AdvanceReservation,
        device: Device,
        later: Sequence[AdvanceReservation],
    ) -> int:
        """One that another must have is left to it if any other will do."""
        node = self.by_id[device.node_id or ""]
        is_needed = any(
            _suits(other, device) and _is_named(other.node, node) for other in later
        )
        return self.prefer(wanted, device) + 2 * is_needed


def choose(
    nodes: Collection[Node],
    reservations: Collection[AdvanceReservation],
    prefer: Preference = lambda _, __: 0,
) -> dict[str, Chosen]:
    """What each reservation gets of these nodes, by its id."""
    in_order = sorted(reservations, key=lambda one: (one.begins_at, one.id))
    return _Choice(sorted(nodes, key=lambda node: node.id), in_order, prefer).make()


def assign(view: View, reservations: Reservations, now: float) -> None:
    """Give all reservations that have not ended their GPUs: of what is usable."""
    usable = {device.uuid for device in view.usable_devices()}
    nodes = [_usable_part(node, usable) for node in view.nodes.values() if node.online]
    running = _Running(view, reservations, now)
    made = choose(nodes, view.advance.coming, running.preference)
    for one in view.advance.coming:
        one.shares = _shares(view.nodes, one, made[one.id])


class _Running:
    """What runs on which GPU."""

    def __init__(self, view: View, reservations: Reservations, now: float) -> None:
        self._view = view
        self._now = now
        self._reservations = reservations
        self._holders = {
            uuid: holder
            for node in view.nodes.values()
            for holder, share in node.bookings.items()
            for uuid in share.gpu_uuids
        }
        self._had = {one.id: one.uuids() for one in view.advance.coming}

    def preference(self, wanted: AdvanceReservation, device: Device) -> int:
        """Least for GPUs on which the holder's jobs run, then for those that it had;
        most for those that are not free in time.
        """
        had = -1 if device.uuid in self._had[wanted.id] else 0
        holder = self._holders.get(device.uuid)
        if holder is None:
            return had
        attempt = self._view.attempts.get(holder)
        job = self._view.jobs.get(attempt.job_id if attempt else holder)
        if job is None or job.preemptible:
            return had
        if wanted.is_held_by(job):
            return -4 if wanted.has_begun(self._now) else had
        end = self._reservations.latest_end(holder)
        return 8 if end > max(self._now, wanted.begins_at) else had


def _usable_part(node: Node, usable: set[str]) -> Node:
    """The node with its usable GPUs only."""
    devices = {uuid: device for uuid, device in node.devices.items() if uuid in usable}
    return Node(
        node.id,
        node.name,
        cpus=node.cpus,
        memory_gb=node.memory_gb,
        devices=devices,
    )


def _is_named(name: str, node: Node) -> bool:
    return not name or name in (node.id, node.title)


def _suits(wanted: AdvanceReservation, device: Device) -> bool:
    if not wanted.gpu_class:
        return True
    return device.gpu_class in resolve_gpu_class(wanted.gpu_class)


def _whole_node(nodes: Sequence[Node], taken: set[str]) -> Chosen:
    for node in nodes:
        if node.id not in taken and taken.isdisjoint(node.devices):
            return Chosen(tuple(node.devices.values()), node.id)
    return Chosen(lacking=1)


def _cheapest(
    free: Sequence[Device], cost: Mapping[str, int], count: int
) -> tuple[Device, ...]:
    """So many of these GPUs: those of least cost, and of these on as few nodes as
    possible. A node that is used already comes before the others.
    """
    by_cost: dict[int, list[Device]] = {}
    for device in free:
        by_cost.setdefault(cost[device.uuid], []).append(device)
    chosen: list[Device] = []
    for least in sorted(by_cost):
        used = {device.node_id for device in chosen}
        here = [one for one in by_cost[least] if one.node_id in used]
        elsewhere = [one for one in by_cost[least] if one.node_id not in used]
        chosen += _on_few_nodes(here, count - len(chosen))
        chosen += _on_few_nodes(elsewhere, count - len(chosen))
    return tuple(chosen)


def _on_few_nodes(devices: Sequence[Device], count: int) -> list[Device]:
    """So many of these: all of the largest nodes, and the last ones of the smallest
    node that has enough.
    """
    # By node in the order of its id, which `devices` have, too.
    on_nodes: dict[str, list[Device]] = {}
    for device in devices:
        on_nodes.setdefault(device.node_id or "", []).append(device)
    largest_first = sorted(on_nodes.values(), key=lambda there: -len(there))
    chosen: list[Device] = []
    for position, there in enumerate(largest_first):
        missing = count - len(chosen)
        if len(there) >= missing:
            left = largest_first[position:]
            smallest = min((one for one in left if len(one) >= missing), key=len)
            return chosen + _last_of(smallest, missing)
        chosen += _last_of(there, len(there))
    return chosen


def _last_of(devices: Sequence[Device], count: int) -> list[Device]:
    """Jobs take the first GPUs of a node first, so the last ones are reserved."""
    return sorted(devices, key=lambda device: device.order)[::-1][:count]


def _shares(
    nodes: Mapping[str, Node], one: AdvanceReservation, chosen: Chosen
) -> dict[str, Placement]:
    """Its GPUs on each node, with their part of the cores and memory there."""
    if chosen.node_id:
        node = nodes[chosen.node_id]
        uuids = tuple(device.uuid for device in chosen.devices)
        return {node.id: Placement(node.id, uuids, node.cpus, node.memory_gb)}
    by_node: dict[str, list[str]] = {}
    for device in chosen.devices:
        by_node.setdefault(device.node_id or "", []).append(device.uuid)
    shares: dict[str, Placement] = {}
    for node_id, uuids in by_node.items():
        node = nodes[node_id]
        part = len(uuids) / max(1, len(node.devices))
        shares[node_id] = Placement(
            node_id, tuple(sorted(uuids)), node.cpus * part, node.memory_gb * part
        )
    return shares
