"""Budgets, end to end: what is spent starts nothing more, and a hard one ends what
runs.
"""

import asyncio
from collections.abc import Iterator
from decimal import Decimal

import pytest

from gpuyard.client.aio import AsyncClient
from gpuyard.domain.errors import NotFoundError
from tests.support.instance import TestInstance, make_instance
from tests.support.over_budget import SAVES_WHEN_ASKED
from tests.support.wait import wait_until

# A second costs a dollar.
PRICE = {"GPUYARD_BILLING__LOCAL_PRICE_PER_HOUR": "3600"}


@pytest.fixture
def instance() -> Iterator[TestInstance]:
    with make_instance(**PRICE) as made:
        made.ok("up")
        yield made


def test_a_spent_budget_starts_nothing_more_and_says_why(
    instance: TestInstance,
) -> None:
    said = instance.ok(
        "budgets", "set", "vision", "--project", "vision", "--amount", "100"
    )
    assert said.startswith("vision: $0.00 of $100.00 are spent")
    running = instance.submit(["sleep", "600"], project="vision", timeout_s=90)
    instance.wait(running, "running")
    waiting = instance.submit(["true"], project="vision", timeout_s=60)
    other = instance.submit(["true"], project="language", timeout_s=60)
    assert instance.wait(other).state == "completed"
    why = instance.json("why", waiting)
    assert (why["pending"], why["constraint"]) == (True, "budget")
    assert "Its budget vision has 10.00 USD left of 100.00 USD" in why["summary"]
    assert "which ends at" in why["summary"]
    # A kill changes nothing of it.
    instance.kill("server")
    instance.ok("up")
    assert instance.json("why", waiting)["constraint"] == "budget"
    (budget,) = instance.json("budgets")["items"]
    assert Decimal(budget["forecast"]) == 90
    assert budget["waiting"] == 1
    assert "vision" in instance.ok("budgets")
    # More of it, or one that ends early, lets it start.
    instance.ok("budgets", "set", "vision", "--project", "vision", "--amount", "200")
    assert instance.wait(waiting).state == "completed"
    instance.ok("budgets", "rm", "vision")
    assert instance.json("budgets")["items"] == []


def test_a_hard_budget_tells_in_time_and_ends_what_runs_after_it_has_saved(
    instance: TestInstance,
) -> None:
    job = instance.submit(
        ["sh", "-c", SAVES_WHEN_ASKED],
        project="vision",
        timeout_s=600,
        checkpoint={"path": "step-*.txt"},
    )
    wait_until(lambda: "ready" in instance.run("logs", job).stdout, what="it to run")
    words = ["--project", "vision", "--amount", "4", "--period", "total", "--hard"]
    instance.ok("budgets", "set", "small", *words)
    ended = instance.wait(job)
    assert (ended.state, ended.reason) == ("cancelled", "budget")
    (saved,) = wait_until(
        lambda: instance.json("checkpoints", job)["items"], what="its checkpoint"
    )
    digest = saved["sha256"]
    assert (instance.home.blobs / digest[:2] / digest[2:]).read_text() == "7\n"

    def told() -> list[str]:
        events = instance.json("events")["items"]
        return [e["kind"] for e in events if e["kind"].startswith("budget.")]

    wait_until(lambda: "budget.spent" in told(), what="the event")
    assert told().count("budget.spent") == 1
    late = instance.submit(["true"], project="vision", timeout_s=1)
    why = instance.json("why", late)
    assert why["constraint"] == "budget"
    assert "in all" in why["summary"]
    # Once there is money again, it goes on from there.
    instance.ok("budgets", "rm", "small")
    instance.ok("resume", job, "-d")
    assert instance.wait(job).state == "completed"
    assert "from 7" in instance.ok("logs", job)


def test_a_budget_of_all_counts_whoever_has_spent(instance: TestInstance) -> None:
    job = instance.submit(["sleep", "0.2"], project="vision")
    spent = Decimal(instance.wait(job).cost.amount)
    instance.ok("budgets", "set", "all", "--amount", str(spent), "--period", "total")
    (budget,) = instance.json("budgets")["items"]
    assert Decimal(budget["spent"]) == spent
    assert "all jobs" in instance.ok("budgets")
    late = instance.submit(["true"], timeout_s=1)
    assert instance.json("why", late)["constraint"] == "budget"


def test_it_is_told_once_when_one_is_nearly_and_when_it_is_wholly_spent(
    instance: TestInstance,
) -> None:
    job = instance.submit(["sleep", "0.2"], project="vision")
    spent = Decimal(instance.wait(job).cost.amount)

    def told() -> list[str]:
        events = instance.json("events")["items"]
        return [e["kind"] for e in events if "spent" in e["kind"]]

    with instance.client() as client:
        for part, kinds in (("0.7", []), ("0.9", ["budget.nearly_spent"])):
            amount = round(spent / Decimal(part), 6)
            made = client.set_budget("vision", amount, project="vision")
            assert made.spent == spent
            wait_until(lambda want=kinds: told() == want, what=f"{kinds}")
        client.set_budget("vision", spent, project="vision")
    wait_until(lambda: told()[1:] == ["budget.spent"], what="the second event")


def test_both_clients_and_what_is_refused(instance: TestInstance) -> None:
    with instance.client() as client:
        made = client.set_budget("mine", 500, user="owner", period="day")
        assert (made.user, made.amount) == ("owner", 500)
        assert [each.name for each in client.budgets()] == ["mine"]

    async def ask() -> None:
        async with AsyncClient(instance.address()) as client:
            assert (await client.budget("mine")).period == "day"
            assert (await client.remove_budget("mine")).name == "mine"
            with pytest.raises(NotFoundError):
                await client.budget("mine")

    asyncio.run(ask())
    for words, said in (
        (["--amount", "5", "--project", "a", "--user", "b"], "does not go with user"),
        (["--amount", "-5", "--project", "a"], "amount"),
        (["--amount", "5", "--project", "a", "--currency", "CNY"], "CNY has no rate"),
        (["--amount", "5", "--project", "a", "--period", "year"], "period"),
        (["--amount", "5", "--project", "a", "--timezone", "Mars"], "no time zone"),
    ):
        refused = instance.run("budgets", "set", "x", *words)
        assert (refused.returncode, said in refused.stderr) == (2, True), refused.stderr
