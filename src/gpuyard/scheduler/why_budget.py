"""Why a job waits for its budget."""

from gpuyard.domain.units import iso_time
from gpuyard.scheduler.budgets import LiveBudget
from gpuyard.scheduler.explanation import Why
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.view import View

_MICROS = 1_000_000


def out_of_budget(view: View, job: LiveJob) -> Why:
    """Which budget has no room for the job, how much it has, and until when."""
    budget = view.budgets.lacking(job)
    if budget is None:
        return Why("It can start now.", "starting", "its budget has room", 0.0)
    needed = view.budgets.reserve_of(job, budget.currency)
    if needed is None:
        return Why(
            f"Its budget {budget.name} is in {budget.currency}, and no rate is known"
            " for the price of this job.",
            "budget",
            "when somebody sets one is not known",
            would_help=("set it in [billing] rates",),
        )
    left = max(budget.left, 0)
    said = (
        f"Its budget {budget.name} has {_money(left, budget)} left of"
        f" {_money(budget.amount, budget)} {_period(budget)}, and it may cost"
        f" {_money(needed, budget)}."
    )
    until = "when somebody raises it is not known"
    if budget.ends_at is not None:
        until = f"its next period begins at {iso_time(budget.ends_at)}"
    return Why(said, "budget", until, would_help=tuple(_help(budget, needed)))


def _help(budget: LiveBudget, needed: int) -> list[str]:
    help_ = [f"raise it (gpuyard budgets set {budget.name} --amount …)"]
    if needed:
        help_.append("give the job a shorter --timeout")
    return help_


def _period(budget: LiveBudget) -> str:
    if budget.ends_at is None:
        return "in all"
    return f"for this {budget.period}, which ends at {iso_time(budget.ends_at)}"


def _money(amount: int, budget: LiveBudget) -> str:
    return f"{amount / _MICROS:.2f} {budget.currency}"
