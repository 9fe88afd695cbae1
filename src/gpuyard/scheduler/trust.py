"""Trust: how far places can be relied on, and which are in quarantine.

A place is a provider, an offer (`PROVIDER/…`), `node:NAME` or `gpu:UUID`. Quarantines end by time alone, so who is in
one is found for a moment (`look`), and what follows from it stands until the next look.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gpuyard.domain.events import Row
from gpuyard.domain.offers import Offer


@dataclass(frozen=True, slots=True)
class Finding:
    """What is recorded about a place: its score (0 to 1), until when it is in quarantine (UTC seconds), and why."""

    score: float | None = None
    until: float | None = None
    reason: str = ""


@dataclass(slots=True)
class Trust:
    """Findings by place; `quarantined` are the places in quarantine at the last look, each with words for people."""

    findings: dict[str, Finding] = field(default_factory=dict[str, Finding])
    quarantined: dict[str, str] = field(default_factory=dict[str, str])
    _since: float = -math.inf
    _until: float = math.inf

    def note(self, place: str, row: Row) -> None:
        """The place's row has these values; one without `updated_at` was forgotten."""
        self._until = -math.inf  # nothing is known of any moment until the next look
        if row["updated_at"] is None:
            self.findings.pop(place, None)
        else:
            self.findings[place] = Finding(row["score"], row["quarantined_until"], row["reason"] or "")

    def look(self, now: float) -> bool:
        """Find out who is in quarantine at `now` (UTC seconds); True when that is another set than before."""
        if self._since <= now < self._until:
            return False
        held = {place: found for place, found in self.findings.items() if found.until and found.until > now}
        words = {place: _words(found) for place, found in held.items()}
        changed, self.quarantined = words != self.quarantined, words
        self._since = now
        self._until = min((found.until for found in held.values() if found.until), default=math.inf)
        return changed

    def next_change(self) -> float | None:
        """When (UTC seconds) the next quarantine ends; None when there is none."""
        return self._until if -math.inf < self._until < math.inf else None

    def barred(self, node: str, providers: Iterable[str]) -> dict[str, str]:
        """Of these providers those whose jobs may not be placed on the node of this name, each with why not."""
        own = self.quarantined.get(f"node:{node}", "")
        return {name: said for name in providers if (said := own or self.quarantined.get(name, ""))}

    def of_gpu(self, uuid: str) -> str:
        """Why nothing may be placed on the GPU; empty when something may."""
        return self.quarantined.get(f"gpu:{uuid}", "")

    def of_offer(self, offer: Offer) -> str:
        """Why nothing may be sent to the offer; empty when something may."""
        return self.quarantined.get(offer.id) or self.quarantined.get(offer.provider, "")

    def score(self, offer: Offer) -> float | None:
        """The offer's own score, or else its provider's; None when neither has one."""
        places = (self.findings.get(offer.id), self.findings.get(offer.provider))
        return next((found.score for found in places if found and found.score is not None), None)


def _words(found: Finding) -> str:
    until = datetime.fromtimestamp(found.until or 0.0, UTC)
    return f"quarantined until {until:%Y-%m-%d %H:%M:%S} UTC" + (f": {found.reason}" if found.reason else "")
