"""The methods of `Client` for trust in places where jobs run."""

from typing import TypeVar

from gpuyard.client import calls
from gpuyard.client.calls import Call
from gpuyard.domain.trust import Trust

T = TypeVar("T")


class TrustMethods:
    """What is recorded about places where jobs run."""

    def call(self, call: Call[T]) -> T:
        """Carry one call."""
        raise NotImplementedError

    def trust(self) -> list[Trust]:
        """What is recorded about places where jobs run: scores and quarantines."""
        return self.call(calls.trust())

    def trust_of(self, place: str) -> Trust:
        """What is recorded about a place (a provider, an offer, `node:NAME`,
        `gpu:UUID`); NotFoundError.
        """
        return self.call(calls.trust_of(place))

    def record_trust(
        self,
        place: str,
        *,
        score: float | None = None,
        quarantined_until: float | None = None,
        reason: str = "",
    ) -> Trust:
        """Record this about a place, instead of what was recorded; the time in UTC
        seconds.
        """
        finding = {
            "score": score,
            "quarantined_until": quarantined_until,
            "reason": reason,
        }
        return self.call(calls.record_trust(place, finding))

    def forget_trust(self, place: str) -> Trust:
        """Forget what is recorded about a place, a quarantine too; what it was.

        NotFoundError.
        """
        return self.call(calls.forget_trust(place))
