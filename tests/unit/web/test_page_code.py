"""What the page makes of what the server says, where no browser is needed."""

from typing import Any

import pytest

from tests.support.page_code import evaluate


@pytest.mark.parametrize(
    ("reference", "address"),
    [
        ("job_01a2", "/jobs/job_01a2"),
        # Among the newest jobs, an array stands as one; it has no page of its own.
        ("array_01a2", "/jobs?array=array_01a2"),
        ("array_01a2_3", "/jobs/array_01a2_3"),
    ],
)
def test_an_array_is_shown_by_its_tasks(reference: str, address: str) -> None:
    found = evaluate(["groups/jobs.ts"], "screenOf(given)", {"id": reference})
    assert found == address


def line(day: str, currency: str, amount: str, converted: str | None) -> dict[str, Any]:
    """A line of a report of costs."""
    return {
        "key": day,
        "currency": currency,
        "amount": amount,
        "converted": converted,
    }


EUROS = line("2026-11-30", "EUR", "2", "2.2")
DOLLARS = line("2026-11-30", "USD", "1", "1")
BEFORE = line("2026-11-29", "USD", "9", "9")


@pytest.mark.parametrize(
    ("lines", "spent"),
    [
        ([], {"amount": "0", "currency": "USD"}),
        ([BEFORE, EUROS], {"day": "2026-11-30", "amount": "2", "currency": "EUR"}),
        (
            [BEFORE, EUROS, DOLLARS],
            {"day": "2026-11-30", "amount": "3.2", "currency": "USD"},
        ),
    ],
    ids=["nothing", "one currency", "two currencies"],
)
def test_a_day_counts_all_its_currencies(
    lines: list[dict[str, Any]], spent: dict[str, Any]
) -> None:
    report = {"items": lines, "currency": "USD"}
    assert evaluate(["groups/spending.ts"], "lastDay(given)", report) == spent


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0001, "1e-4"), (0.000107, "1.07e-4"), (2e6, "2e+6"), (0.5, "0.5")],
)
def test_a_figure_has_no_digits_that_say_nothing(value: float, text: str) -> None:
    assert evaluate(["format.ts"], "figure(given)", value) == text
