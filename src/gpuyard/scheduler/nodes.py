"""Nodes: hosts with their GPUs, their bookings and what is free."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpuyard.domain.gpus import GPU_CLASSES, GPUClass, classify, compute_capability
from gpuyard.domain.shape import Placement
from gpuyard.domain.states import GpuState

REMOVED = "removed"
"""The state of a node that is no longer part of the instance."""
UNUSABLE = frozenset(
    {GpuState.OFFLINE, GpuState.QUARANTINED, GpuState.DRAINING, GpuState.COOLING}
)


@dataclass(slots=True)
class Device:
    """A GPU. `quarantine` says why only jobs that allow quarantine may use it, for
    people; it is empty if all may. `brain_rank` is 2 for a primary GPU of the brain, 1
    for a secondary one, and 0 for others, which jobs use first.

    `memory_gb` is the nominal memory, which is more than the device reports: a "16 GB"
    T4 reports 15.0 to 15.75 GB, and people ask for 16. A device of a known class has
    the nominal memory of its class. Any other (a MIG slice, an unknown type) has what
    it reports, rounded up to the next half GB.
    """

    uuid: str
    node_id: str | None = None
    index: int = 0
    name: str = ""
    memory_mb: float = 0
    compute_capability: str | None = None
    state: str = GpuState.IDLE
    problem: str | None = None
    draining: bool = False
    quarantine: str = ""
    brain_rank: int = 0
    gpu_class: GPUClass | None = field(init=False)
    memory_gb: float = field(init=False)
    capability: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.gpu_class = classify(self.name, int(self.memory_mb))
        reported = math.ceil(self.memory_mb / 1024 * 2) / 2
        self.memory_gb = (
            GPU_CLASSES[self.gpu_class].memory_gb if self.gpu_class else reported
        )
        self.capability = (
            compute_capability(self.compute_capability)
            if self.compute_capability
            else (0, 0)
        )

    @property
    def usable(self) -> bool:
        """True if jobs may be placed on it."""
        return self.state not in UNUSABLE and not self.draining

    @property
    def why_not(self) -> str:
        """Why it is not usable, for people; empty when it is."""
        if self.usable:
            return ""
        state = self.state if self.state in UNUSABLE else GpuState.DRAINING
        return f"{state}: {self.problem}" if self.problem else state

    @property
    def order(self) -> tuple[int, float, tuple[int, int], int, str]:
        """The sort key of devices: the smallest that suffices is used first, and those
        of the brain last.
        """
        return (
            self.brain_rank,
            self.memory_gb,
            self.capability,
            self.index,
            self.uuid,
        )


@dataclass(frozen=True, slots=True)
class Space:
    """Room on a node: cores, gigabytes, and devices in the order in which they are
    used.
    """

    cpus: float
    memory_gb: float
    devices: tuple[Device, ...]

    def minus(self, share: Placement) -> "Space":
        """The room without `share`; no amount goes below 0."""
        left = tuple(
            device for device in self.devices if device.uuid not in share.gpu_uuids
        )
        return Space(
            max(0.0, self.cpus - share.cpus),
            max(0.0, self.memory_gb - share.memory_gb),
            left,
        )

    def within(self, other: "Space") -> "Space":
        """The room that both have."""
        other_uuids = {device.uuid for device in other.devices}
        both = tuple(device for device in self.devices if device.uuid in other_uuids)
        return Space(
            min(self.cpus, other.cpus), min(self.memory_gb, other.memory_gb), both
        )


NOTHING = Space(0.0, 0.0, ())


@dataclass(slots=True)
class Node:
    """A host. `bookings` are the shares on it, by attempt id, or by job id while the
    start is tentative.

    `whole` is the room if nothing were booked, `free` the room now; neither counts
    unusable devices. `containers` is the provider that runs containers here, empty if
    none does. `barred`: the providers in quarantine here, each with the reason; only
    jobs that allow quarantine may use them. `cordoned`: a person wants no new jobs
    here. `joined`: it is another machine, which has none of the server's folders.
    """

    id: str
    name: str = ""
    provider: str = ""
    containers: str = ""
    state: str = "unknown"
    reason: str | None = "has not reported yet"
    cordoned: bool = False
    joined: bool = False
    cpus: float = 0.0
    memory_gb: float = 0.0
    devices: dict[str, Device] = field(default_factory=dict[str, Device])
    bookings: dict[str, Placement] = field(default_factory=dict[str, Placement])
    whole: Space = NOTHING
    barred: Mapping[str, str] = field(default_factory=dict[str, str])
    _free: Space | None = None

    @property
    def online(self) -> bool:
        """True while attempts may be placed here."""
        return self.state == "online" and not self.cordoned

    @property
    def why_not(self) -> str:
        """Why it is not online, for people; empty when it is."""
        if self.online:
            return ""
        if self.cordoned and self.state == "online":
            return "cordoned: it gets no new jobs"
        return f"{self.state}: {self.reason}" if self.reason else self.state

    @property
    def title(self) -> str:
        """What people call it."""
        return self.name or self.id

    @property
    def capacity(self) -> Space:
        """All that it has: booked or free, usable or not."""
        return Space(self.cpus, self.memory_gb, tuple(self.devices.values()))

    @property
    def free(self) -> Space:
        """The room now."""
        if self._free is None:
            self._free = self.space(self.bookings.values())
        return self._free

    def space(self, booked: Iterable[Placement]) -> Space:
        """The room that `booked` leaves."""
        shares = list(booked)
        if not shares:
            return self.whole
        taken = {uuid for share in shares for uuid in share.gpu_uuids}
        # fsum is exact, so the result does not depend on the order of the bookings.
        cpus = math.fsum([share.cpus for share in shares])
        memory_gb = math.fsum([share.memory_gb for share in shares])
        devices = [device for device in self.whole.devices if device.uuid not in taken]
        return Space(
            max(0.0, self.cpus - cpus),
            max(0.0, self.memory_gb - memory_gb),
            tuple(devices),
        )

    def book(self, holder: str, share: Placement) -> None:
        """Book `share` for `holder`; it replaces the holder's booking here."""
        self.bookings[holder] = share
        self._free = None

    def unbook(self, holder: str) -> None:
        """Free what `holder` holds here; idempotent."""
        self.bookings.pop(holder, None)
        self._free = None

    def rebuild(self) -> None:
        """Recompute `devices` and `whole` after figures or devices have changed."""
        self.devices = {
            device.uuid: device
            for device in sorted(self.devices.values(), key=lambda item: item.order)
        }
        usable = tuple(device for device in self.devices.values() if device.usable)
        self.whole = Space(self.cpus, self.memory_gb, usable)
        self._free = None
