"""How a try to deliver ended, and what makes one."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gpuyard.notify.letter import Letter
from gpuyard.notify.webhook import Webhook


class Outcome(StrEnum):
    """What became of a delivery, as it is counted."""

    DELIVERED = "delivered"
    RETRIED = "retried"
    """It was not taken, and is sent again."""
    DROPPED = "dropped"
    """The receiver refused it for good."""
    PRUNED = "pruned"
    """The event left the journal before the receiver could be reached."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a receiver made of a letter, and why; `wait_s` is for how long it asks not to be called."""

    outcome: Outcome
    why: str
    wait_s: float = 0.0


class Deliverer(Protocol):
    """What carries letters to receivers."""

    async def deliver(self, hook: Webhook, letter: Letter) -> Answer:
        """Try once; whatever the receiver does is an answer and no error."""
        ...

    async def close(self) -> None:
        """Nothing more is to be delivered."""
        ...
