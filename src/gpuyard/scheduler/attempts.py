"""Attempts as decisions see them, and the places that they are to leave to others."""

from dataclasses import dataclass

from gpuyard.domain.shape import Placement
from gpuyard.domain.states import AttemptState


@dataclass(slots=True)
class LiveAttempt:
    """An attempt that has not ended. Times are UTC seconds; `started_at` is None until
    it runs, `reason` until it is asked to end.
    """

    id: str
    job_id: str
    state: AttemptState
    token: int
    placements: tuple[Placement, ...]
    created_at: float
    started_at: float | None = None
    number: int = 1
    provider: str = ""
    provider_ref: str | None = None
    price_per_hour: str = "0"
    currency: str = ""
    reason: str | None = None

    @property
    def node_id(self) -> str:
        """Its first node, whose agent reports about it."""
        return self.placements[0].node_id if self.placements else ""

    def runs_on(self, node_id: str) -> bool:
        """Whether a share of it runs there, or is to run."""
        if len(self.placements) <= 1:
            return self.node_id == node_id
        return any(share.node_id == node_id for share in self.placements)

    @property
    def offer(self) -> str:
        """The offer of an external queue it was sent to; empty on our own nodes."""
        return self.placements[0].offer if self.placements else ""

    @property
    def prefetched(self) -> bool:
        """True while it waits on its node for another attempt to end."""
        return any(share.prefetched for share in self.placements)


@dataclass(slots=True)
class Promise:
    """Places that are kept for a job while `attempts` leave them."""

    placements: tuple[Placement, ...]
    attempts: frozenset[str]
