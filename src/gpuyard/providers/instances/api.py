"""What gpuyard asks of a cloud: to start machines, list them, end them, and tell their
prices.

The module of a cloud implements `InstanceApi` with the cloud's own SDK and knows
nothing of jobs. It raises ProviderError with one of the codes below, or a transient one
(`providers/base.py`: THROTTLED, TIMEOUT, NOT_CONNECTED), after which the caller may
repeat the call.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Protocol

from gpuyard.domain.bills import CostPart
from gpuyard.domain.price_parts import PricePart

CAPACITY = "CAPACITY"
"""The zone has no such machine now. Another zone or market may."""
QUOTA = "QUOTA"
"""The account may not have more of them in this region."""
PRICE = "PRICE"
"""The price is above the limit of the order."""
DENIED = "DENIED"
"""The account lacks a permission; the message names it."""
CREDENTIALS = "CREDENTIALS"
"""The credentials are wrong or have expired."""
SETTING = "SETTING"
"""A setting names what is not there; the message names the setting."""

TAG_INSTALLATION = "gpuyard-installation"
"""The tag whose value is the id of the gpuyard instance that rents the machine."""
TAG_OWNER = "gpuyard-owner"
"""The tag that says for what a machine was rented: the id of an attempt, or of a node
of a pool.
"""


class InstanceState(StrEnum):
    """What a cloud says of a machine."""

    PENDING = "pending"
    """Asked for, and not up yet."""
    RUNNING = "running"
    ENDING = "ending"
    """It stops or has stopped; its disk may still cost."""
    GONE = "gone"
    """It has ended and costs nothing. A cloud may forget it soon."""

    @property
    def is_live(self) -> bool:
        """Whether it may still run a job."""
        return self in (InstanceState.PENDING, InstanceState.RUNNING)


@dataclass(frozen=True, slots=True)
class MachineType:
    """A type of machine. `name` is the cloud's (`g5.xlarge`), `gpu` the name of one of
    its `gpus` GPUs, `capability` its CUDA compute capability (`8.6`).
    """

    name: str
    gpu: str = ""
    gpus: int = 0
    gpu_memory_gb: float = 0.0
    capability: str = ""
    cpus: float = 1.0
    memory_gb: float = 1.0


@dataclass(frozen=True, slots=True)
class Market:
    """A type in a zone, on demand or spot: what can be rented.

    `price_per_hour` is that of now, None if unknown; `price_source` says who gave it
    and when. `problem`: why it cannot be had now. `within`: what of that price is not
    for the machine itself; `beside`: what is paid besides, such as for a disk.
    `disk_gb`: the disk is at least so large, whatever the settings ask for.
    """

    type: MachineType
    region: str
    zone: str
    spot: bool
    price_per_hour: Decimal | None
    currency: str
    price_source: str
    problem: str = ""
    within: tuple[PricePart, ...] = ()
    beside: tuple[PricePart, ...] = ()
    disk_gb: int = 0

    @property
    def total_per_hour(self) -> Decimal | None:
        """What an hour costs with all that is paid besides; None if unknown."""
        if self.price_per_hour is None:
            return None
        return self.price_per_hour + sum(one.per_hour for one in self.beside)

    @property
    def others_per_hour(self) -> Decimal:
        """What an hour costs beside the machine itself, as far as that is known."""
        others = (*self.within, *self.beside)
        return sum((one.per_hour for one in others), Decimal(0))

    @property
    def parts(self) -> tuple[PricePart, ...]:
        """What that is made of; empty if nothing beside the machine is known."""
        others = (*self.within, *self.beside)
        if self.price_per_hour is None or not others:
            return ()
        own = self.price_per_hour - sum(one.per_hour for one in self.within)
        return (PricePart(CostPart.MACHINE, own, self.price_source), *others)


@dataclass(frozen=True, slots=True)
class InstanceOrder:
    """A machine to be started.

    `owner` is the value of TAG_OWNER and the client token: an order that is repeated
    with the same owner starts no second machine. `user_data` is a script or a
    cloud-config in plain text. `max_price` is per hour, for spot only, and for the
    machine alone. `image`: a machine image, the configured one if empty.
    """

    owner: str
    installation: str
    name: str
    type: str
    region: str
    zone: str
    spot: bool
    user_data: str
    disk_gb: int
    max_price: Decimal | None = None
    image: str = ""
    tags: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Instance:
    """A machine of a cloud. `id` is the cloud's; `launched_at` is in UTC seconds.

    `why` says in the cloud's words why it ended or does not start. `interrupted`: the
    cloud has taken it back, or will.
    """

    id: str
    region: str
    zone: str
    type: str
    spot: bool
    state: InstanceState
    owner: str
    launched_at: float | None = None
    why: str = ""
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class InstanceRef:
    """An instance to be ended."""

    region: str
    id: str


@dataclass(frozen=True, slots=True)
class MissingRight:
    """A permission that the account lacks: `action` in the cloud's words, `needed_for`
    in ours.
    """

    action: str
    needed_for: str


@dataclass(frozen=True, slots=True)
class ListPrice:
    """The on-demand price of a type in a region. `date` (`2026-11-29`) says when its
    `source` had it.
    """

    type: str
    region: str
    price_per_hour: Decimal
    currency: str
    source: str
    date: str


class InstanceApi(Protocol):
    """A cloud. Calls may come at once; each keeps the cloud's own rate limit, waits
    when it is throttled, and gives up with a transient ProviderError.
    """

    async def markets(self) -> Sequence[Market]:
        """What can be rented in the configured regions and zones."""
        ...

    async def launch(self, order: InstanceOrder) -> Instance:
        """Start a machine; the same one again for an order that is repeated."""
        ...

    async def find(self, owner: str, installation: str) -> Instance | None:
        """The machine that was started for this owner, in any region."""
        ...

    async def instances(self, installation: str) -> Sequence[Instance]:
        """All machines of the installation, also those that have just ended; at most
        ten requests for 500 machines in one region.
        """
        ...

    async def end(self, refs: Sequence[InstanceRef]) -> None:
        """End these machines and delete their disks. One that is gone is no error."""
        ...

    async def missing_rights(self) -> Sequence[MissingRight]:
        """The permissions that gpuyard needs and the account lacks, found without
        renting anything.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
