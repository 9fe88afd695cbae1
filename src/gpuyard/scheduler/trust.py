"""Trust: scores and quarantines of places.

A place is a provider, an offer (`PROVIDER/…`), `node:NAME` or `gpu:UUID`. Quarantines
end by time, so `refresh` finds those in force at a moment, and these hold until the
next `refresh`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gpuyard.domain.events import Row
from gpuyard.domain.offers import Offer


@dataclass(frozen=True, slots=True)
class PlaceTrust:
    """The record of a place: its score (0 to 1), the end of its quarantine (UTC
    seconds), and the reason.
    """

    score: float | None = None
    until: float | None = None
    reason: str = ""


@dataclass(slots=True)
class TrustTable:
    """Records by place. `quarantined`: the places in quarantine at the last `refresh`,
    each with a text for people. `changes`: how often a record was noted.
    """

    findings: dict[str, PlaceTrust] = field(default_factory=dict[str, PlaceTrust])
    quarantined: dict[str, str] = field(default_factory=dict[str, str])
    changes: int = 0
    _since: float = -math.inf
    _until: float = math.inf

    def note(self, place: str, row: Row) -> None:
        """Store a row of the ledger; one without `updated_at` deletes the record."""
        # What the last `refresh` found no longer holds.
        self._until = -math.inf
        self.changes += 1
        if row["updated_at"] is None:
            self.findings.pop(place, None)
        else:
            self.findings[place] = PlaceTrust(
                row["score"], row["quarantined_until"], row["reason"] or ""
            )

    def refresh(self, now: float) -> bool:
        """Find the quarantines in force at `now` (UTC seconds); returns whether they
        have changed.
        """
        if self._since <= now < self._until:
            return False
        quarantined: dict[str, str] = {}
        next_end = math.inf
        for place, found in self.findings.items():
            if found.until and found.until > now:
                quarantined[place] = _quarantine_text(found)
                next_end = min(next_end, found.until)
        changed = quarantined != self.quarantined
        self.quarantined = quarantined
        self._since = now
        self._until = next_end
        return changed

    def next_change(self) -> float | None:
        """When (UTC seconds) the next quarantine ends; None if there is none."""
        return self._until if -math.inf < self._until < math.inf else None

    def barred(self, node: str, providers: Iterable[str]) -> dict[str, str]:
        """Those of `providers` that may not place jobs on the node, each with the
        reason: the quarantine of the node, or else of the provider.
        """
        of_node = self.quarantined.get(f"node:{node}", "")
        barred: dict[str, str] = {}
        for name in providers:
            quarantine = of_node or self.quarantined.get(name, "")
            if quarantine:
                barred[name] = quarantine
        return barred

    def of_gpu(self, uuid: str) -> str:
        """The quarantine of the GPU, for people; empty if there is none."""
        return self.quarantined.get(f"gpu:{uuid}", "")

    def of_offer(self, offer: Offer) -> str:
        """The quarantine of the offer, or else of its provider, for people; empty if
        there is none.
        """
        of_provider = self.quarantined.get(offer.provider, "")
        return self.quarantined.get(offer.id, of_provider)

    def score(self, offer: Offer) -> float | None:
        """The score of the offer, or else of its provider; None if neither has one."""
        for place in (offer.id, offer.provider):
            found = self.findings.get(place)
            if found and found.score is not None:
                return found.score
        return None


def _quarantine_text(found: PlaceTrust) -> str:
    until = datetime.fromtimestamp(found.until or 0.0, UTC)
    text = f"quarantined until {until:%Y-%m-%d %H:%M:%S} UTC"
    return f"{text}: {found.reason}" if found.reason else text
