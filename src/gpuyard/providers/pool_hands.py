"""What a pool asks of a provider: to start machines that join by themselves, to list
them and to end them.

A provider that can do so returns its hands from `pool_hands`. They keep no state: the
ledger does. A machine carries the id of its row in the ledger, so it is found again
whatever reply was lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Protocol

OWNER_PREFIX = "poolnode"
"""The beginning of the ids of rows, by which a provider knows the machines of pools."""


@dataclass(frozen=True, slots=True)
class NodeSize:
    """What a node of the pool has. `name` is the provider's word for it; `gpu` names
    one of its `gpus` GPUs, and `capability` is the CUDA compute capability of that
    (`8.6`).
    """

    name: str
    cpus: float
    memory_gb: float
    gpus: int = 0
    gpu: str = ""
    gpu_memory_gb: float = 0.0
    capability: str = ""


@dataclass(frozen=True, slots=True)
class PoolOrder:
    """A machine to be started. `owner` is the id of its row: repeated with the same
    one, an order starts no second machine.

    It joins as the node `name` with the two words `join_url` and `join_code`, of which
    the second is a secret.
    """

    owner: str
    name: str
    join_url: str
    join_code: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class PoolMachine:
    """A machine that was started for a pool, as the provider tells.

    `reference` is the provider's; `live` is false once it has ended and costs nothing.
    `began_at` is since when it costs, `ends_at` when the provider ends it by itself
    (UTC seconds; None: not yet, and never). `leaving`: the provider takes it back, or
    will. `why` says in its words why it waits or has ended. The price is per hour.
    """

    owner: str
    reference: str
    live: bool
    began_at: float | None = None
    ends_at: float | None = None
    leaving: bool = False
    why: str = ""
    price_per_hour: Decimal | None = None
    currency: str = ""


class PoolOwner(Protocol):
    """The instance whose pools these are."""

    @property
    def installation(self) -> str:
        """Its id, of hexadecimal digits. ProviderError where no machine has ever been
        able to join it.
        """
        ...

    def owns(self, owner: str) -> bool:
        """Whether it has a row with this id, of a node that has not gone."""
        ...


class PoolHands(Protocol):
    """The machines of one pool at its provider. Each call may raise ProviderError.

    `poll_s`: how often `machines` may be asked for.
    """

    poll_s: float

    async def size(self) -> NodeSize:
        """What a node of the pool has. ProviderError names the setting if there is no
        such size.
        """
        ...

    async def launch(self, order: PoolOrder) -> PoolMachine:
        """Start a machine; the same one again for an order that is repeated. After a
        ProviderError with a transient code (`TRANSIENT`) nobody knows whether there is
        one; after any other, there is none.
        """
        ...

    async def find(self, owner: str) -> PoolMachine | None:
        """The machine that was started for this row; None if there is none."""
        ...

    async def machines(self) -> Sequence[PoolMachine]:
        """All machines that pools of this instance have at the provider; those that
        have just ended may be among them.
        """
        ...

    async def end(self, reference: str) -> None:
        """End this machine. One that is gone is no error."""
        ...
