"""The methods of `Client` for trust in places where jobs run."""

from typing import TypeVar

from gpuyard.client import calls
from gpuyard.client.calls import Call
from gpuyard.domain.trust import Trust
from gpuyard.domain.verifications import Verification

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

    def verifications(
        self, *, executor: str | None = None, limit: int = 200
    ) -> list[Verification]:
        """The newest verdicts of checks, newest first; of one `executor` if it is
        named.
        """
        wanted = {"executor": executor, "limit": limit}
        params = {name: value for name, value in wanted.items() if value is not None}
        return self.call(calls.verifications(params))

    def forget_trust(self, place: str) -> Trust:
        """Forget what is recorded about a place, a quarantine too; what it was.

        NotFoundError.
        """
        return self.call(calls.forget_trust(place))
