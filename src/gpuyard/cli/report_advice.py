"""Prints advice on costs."""

from decimal import Decimal
from typing import TYPE_CHECKING

from gpuyard.cli.output import clock, print_table, say

if TYPE_CHECKING:
    from gpuyard.domain.cost_advice import CostAdvice, CostAdviceReport

_CENTS = 2
_WORDS = {
    "gpu_idle": "GPU idle",
    "gpu_waits_for_data": "GPU waits for data",
    "tier_too_large": "tier too large",
    "spot": "spot would do",
}


def print_advice(found: "CostAdviceReport") -> None:
    """A table, and below it what was measured and what to do."""
    rows = [
        (
            str(number),
            money(item.saved, item.currency, _CENTS),
            money(item.amount, item.currency, _CENTS),
            item.user,
            item.program,
            str(item.attempts),
            _WORDS.get(item.topic, item.topic),
        )
        for number, item in enumerate(found.items, 1)
    ]
    columns = ["", "SAVES", "OF", "USER", "JOBS NAMED", "ATTEMPTS", "WHY"]
    print_table(columns, rows, empty="No advice.")
    for number, item in enumerate(found.items, 1):
        say()
        say(f"{number}. {_sentences(item)}")
    say()
    say(f"Of attempts that ended from {clock(found.begin)} to {clock(found.end)}.")
    say(_unmeasured(found))


def money(amount: Decimal, currency: str, places: int) -> str:
    """An amount for people."""
    text = f"{amount:.{places}f}"
    return f"${text}" if currency == "USD" else f"{text} {currency}"


def _sentences(item: "CostAdvice") -> str:
    measured = f"{item.measured[:1].upper()}{item.measured[1:]}"
    remedy = f"{item.remedy[:1].upper()}{item.remedy[1:]}"
    return f"{measured}. {remedy}. For example {', '.join(item.jobs)}."


def _unmeasured(found: "CostAdviceReport") -> str:
    """How much nobody measured."""
    if not found.attempts:
        return "None ended then."
    without_memory = found.attempts - found.memory_measured
    hours = found.gpu_hours - found.gpu_hours_measured
    return (
        f"Not measured, so without advice: the memory of {without_memory} of"
        f" {found.attempts} attempts, and the use of GPUs in {hours:.1f} of"
        f" {found.gpu_hours:.1f} GPU hours."
    )
