"""Dead letters: events that a receiver will not take, put aside so that later ones go
on.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

# This many are kept of each webhook; all are counted.
KEPT = 20


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that was put aside, and why; `at` is when (UTC seconds)."""

    event_id: str
    seq: int
    kind: str
    job_id: str | None
    at: float
    tries: int
    why: str


@dataclass(slots=True)
class DeadLetters:
    """How many events of one webhook were put aside, and the latest of them."""

    count: int = 0
    latest: list[DeadLetter] = field(default_factory=list[DeadLetter])

    @classmethod
    def of(cls, note: Mapping[str, Any]) -> "DeadLetters":
        """Those of a note in the ledger, empty if there is none."""
        latest = [DeadLetter(**letter) for letter in note.get("latest", ())]
        return cls(note.get("count", 0), latest)

    def add(self, letter: DeadLetter) -> None:
        """Count a letter."""
        self.count += 1
        self.latest = [*self.latest, letter][-KEPT:]

    def to_json(self) -> dict[str, Any]:
        """As a note in the ledger, and as part of the API's answer."""
        return {"count": self.count, "latest": list(map(asdict, self.latest))}
