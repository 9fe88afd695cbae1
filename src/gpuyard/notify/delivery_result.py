"""The result of one attempt to deliver, and the interface that makes one."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gpuyard.notify.payload import Payload
from gpuyard.notify.receiver import Receiver


class DeliveryOutcome(StrEnum):
    """What became of a delivery; the metrics count these."""

    DELIVERED = "delivered"
    RETRIED = "retried"
    """The receiver did not accept it; it is sent again."""
    DROPPED = "dropped"
    """The receiver refused it for good, or did not take it for hours: it was put
    aside."""
    PRUNED = "pruned"
    """The event left the journal before the receiver could be reached."""


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """How a receiver answered, and why.

    `wait_s`: for how long it asks not to be called again.
    """

    outcome: DeliveryOutcome
    why: str
    wait_s: float = 0.0


class Deliverer(Protocol):
    """Sends payloads to receivers."""

    async def deliver(self, receiver: Receiver, payload: Payload) -> DeliveryResult:
        """Try once; a receiver's failure is a result, not an exception."""
        ...

    async def close(self) -> None:
        """Release the connections; nothing more is delivered."""
        ...
