"""What a provider of rented machines needs of the instance: invitations, the orders of
its attempts, and the nodes that its machines have become.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpuyard.domain import wire
from gpuyard.domain.attempt_order import AttemptOrder


@dataclass(frozen=True, slots=True)
class Invited:
    """The two arguments of `gpuyard join`, for one machine."""

    url: str
    code: str = field(repr=False)


class RentingInstance(Protocol):
    """The instance, as one provider of rented machines sees it."""

    @property
    def epoch(self) -> int:
        """That of the server which leads."""
        ...

    @property
    def installation(self) -> str:
        """The id of the instance, by which it knows its machines at a cloud.
        ProviderError where no machine has ever been able to join.
        """
        ...

    def refuse_without_door(self) -> None:
        """ProviderError where no machine can join now."""
        ...

    async def invite(self, order: AttemptOrder, name: str, for_s: float) -> Invited:
        """Invite a machine to join for this attempt, as the node `name`. Repeated, it
        answers the same, and the `for_s` seconds begin again. ProviderError.
        """
        ...

    def owns(self, owner: str) -> bool:
        """Whether a machine is needed that was rented for this owner: a live attempt,
        one of which something is still fetched, or a node of a pool.
        """
        ...

    def is_recorded(self, attempt_id: str) -> bool:
        """Whether the ledger has the end of the attempt."""
        ...

    def attempt_of(self, reference: str) -> str:
        """The live attempt with this reference; empty if there is none."""
        ...

    def attempt_on(self, node_id: str) -> str:
        """For which attempt the node has joined; empty if for none that is live."""
        ...

    def node_of(self, attempt_id: str) -> str:
        """The node that has joined for the attempt; empty if none has."""
        ...

    def is_wanted(self, attempt_id: str) -> bool:
        """Whether the attempt is live, and nobody has asked for its end."""
        ...

    def has_started(self, attempt_id: str) -> bool:
        """Whether the ledger knows of a start of the attempt."""
        ...

    async def order(self, attempt_id: str) -> AttemptOrder | None:
        """The order of a live attempt; None if it has ended meanwhile. ProviderError
        when it cannot be made just now.
        """
        ...

    async def place(
        self, attempt_id: str, node_id: str, gpu_uuids: Sequence[str]
    ) -> None:
        """Record where the attempt is about to start."""
        ...

    async def joined(
        self, provider: str, hello: wire.Hello, about: str
    ) -> wire.Welcome:
        """A node has connected. `about` says what it is, for people. RefusedError if it
        is not needed any more.
        """
        ...

    async def left(self, node_id: str) -> None:
        """The connection to a node is broken."""
        ...

    async def claimed(self, node_id: str, address: str) -> None:
        """A second machine uses the certificate of the node."""
        ...

    async def reported(
        self, node_id: str, bodies: Sequence[wire.NumberedReport]
    ) -> None:
        """What an agent reports of a running attempt."""
        ...

    def believable(self, end: wire.Ended) -> wire.Ended:
        """What an agent says of an end, as far as that can be."""
        ...

    async def forget(self, attempt_id: str) -> None:
        """The machine of the attempt is not needed: its node is no longer part of the
        instance, and nobody can join for it.
        """
        ...
