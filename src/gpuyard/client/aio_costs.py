"""The methods of `AsyncClient` for costs."""

from typing import TypeVar

from gpuyard.client import cost_calls
from gpuyard.client.calls import Call
from gpuyard.domain.costs import CostReport

T = TypeVar("T")


class AsyncCostMethods:
    """As those of `Client`, awaited."""

    async def call(self, call: Call[T]) -> T:
        """Carry one call."""
        raise NotImplementedError

    async def costs(
        self,
        by: str = "project",
        *,
        begin: float | None = None,
        end: float | None = None,
        timezone: str | None = None,
    ) -> CostReport:
        """What attempts cost from `begin` until before `end` (UTC seconds; this month
        so far), by `user`, `project`, `tier`, `provider`, `gpu` or `day`.

        `timezone` is that of this machine unless you name one; days and months are of
        it.
        """
        return await self.call(cost_calls.costs(by, begin, end, timezone))
