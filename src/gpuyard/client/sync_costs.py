"""The methods of `Client` for costs."""

from typing import Any, TypeVar

from gpuyard.client import cost_calls
from gpuyard.client.calls import Call
from gpuyard.domain.benchmarks import BenchmarkReport
from gpuyard.domain.budgets import Budget
from gpuyard.domain.cost_advice import CostAdviceReport
from gpuyard.domain.costs import CostReport
from gpuyard.domain.fair_shares import FairShares

T = TypeVar("T")


class CostMethods:
    """What jobs cost."""

    def call(self, call: Call[T]) -> T:
        """Carry one call."""
        raise NotImplementedError

    def costs(
        self,
        by: str = "project",
        *,
        begin: float | None = None,
        end: float | None = None,
        timezone: str | None = None,
    ) -> CostReport:
        """What attempts cost from `begin` until before `end` (UTC seconds; this month
        so far), by `user`, `project`, `tier`, `provider`, `gpu`, `day`, `week` or
        `month`.

        `timezone` is that of this machine unless you name one; days and months are of
        it.
        """
        return self.call(cost_calls.costs(by, begin, end, timezone))

    def cost_advice(
        self, *, begin: float | None = None, end: float | None = None
    ) -> CostAdviceReport:
        """What could have cost less, of the attempts that ended from `begin` until
        before `end` (UTC seconds; this month so far): from what was measured of them.
        """
        return self.call(cost_calls.advice(begin, end))

    def benchmarks(
        self, *, begin: float | None = None, end: float | None = None
    ) -> BenchmarkReport:
        """How fast programs ran on each size and what that cost, of the jobs that
        completed from `begin` until before `end` (UTC seconds; this month so far).
        """
        return self.call(cost_calls.benchmarks(begin, end))

    def shares(self) -> FairShares:
        """The share of each organisation, project and user under the policy `fair`, and
        what they have used of it.
        """
        return self.call(cost_calls.shares())

    def budgets(self) -> list[Budget]:
        """Every budget, by name."""
        return self.call(cost_calls.budgets())

    def budget(self, name: str) -> Budget:
        """The budget of this name; NotFoundError."""
        return self.call(cost_calls.budget(name))

    def set_budget(self, name: str, amount: Any, **fields: Any) -> Budget:
        """Add a budget, or replace the one of this name: of a `project` or a `user`,
        for each `period` (`day`, `month` or `total`), in a `currency`; `hard` ends what
        runs when it is spent. `timezone` is that of this machine unless you name one.
        """
        return self.call(cost_calls.set_budget(name, amount, fields))

    def remove_budget(self, name: str) -> Budget:
        """Remove a budget; what it was. NotFoundError."""
        return self.call(cost_calls.remove_budget(name))
