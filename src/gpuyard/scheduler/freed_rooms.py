"""Which of a thousand shapes fit where room has become free."""

from collections.abc import Collection, Iterable
from dataclasses import fields
from operator import attrgetter
from typing import Any, NamedTuple

from gpuyard.domain.shape import Shape
from gpuyard.scheduler.fitting import SLACK, may_use, suitable_devices
from gpuyard.scheduler.nodes import Node, Space

_AMOUNTS = ("cpus", "memory_gb", "gpus")
_OTHERS = [each.name for each in fields(Shape) if each.init]
# All that a shape says but for its amounts.
_kind = attrgetter(*(name for name in _OTHERS if name not in _AMOUNTS))


class _Room(NamedTuple):
    """What shapes of one kind may use of a node; with a little slack."""

    gpus: int
    cpus: float
    memory_gb: float


class FreedRooms:
    """The free room of some nodes. What shapes of one kind may use there is looked up
    once for all of them, because most differ in their amounts only.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes = [(node, node.free) for node in nodes if node.online]
        self._by_kind: dict[tuple[Any, ...], list[_Room]] = {}

    def fitting(self, shapes: Collection[Shape]) -> list[Shape]:
        """Those of the shapes of which a share fits into one of the rooms."""
        spaces = [space for _, space in self._nodes]
        gpus = max((len(space.devices) for space in spaces), default=-1)
        cpus = max((space.cpus for space in spaces), default=-1.0) + SLACK
        memory_gb = max((space.memory_gb for space in spaces), default=-1.0) + SLACK
        # Those that ask for too much anyway cost no more than a look.
        return [
            shape
            for shape in shapes
            if shape.gpus <= gpus
            and shape.cpus <= cpus
            and shape.memory_gb <= memory_gb
            and self._fits(shape)
        ]

    def _fits(self, shape: Shape) -> bool:
        kind = _kind(shape)
        rooms = self._by_kind.get(kind)
        if rooms is None:
            rooms = [
                _room_for(space, shape)
                for node, space in self._nodes
                if may_use(node, shape)
            ]
            self._by_kind[kind] = rooms
        for gpus, cpus, memory_gb in rooms:
            has_amounts = shape.cpus <= cpus and shape.memory_gb <= memory_gb
            if has_amounts and shape.gpus <= gpus:
                return True
        return False


def _room_for(space: Space, shape: Shape) -> _Room:
    devices = suitable_devices(space.devices, shape)
    return _Room(len(devices), space.cpus + SLACK, space.memory_gb + SLACK)
