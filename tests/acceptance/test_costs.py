"""What jobs cost, end to end: `gpuyard report`, `/api/v1/costs` and both clients."""

import asyncio
import csv
import json
from collections.abc import Iterator
from decimal import Decimal

import httpx
import pytest

from gpuyard.client.aio import AsyncClient
from tests.support.instance import TestInstance, make_instance
from tests.support.nvml import FakeGpus
from tests.support.wait import wait_until
from tests.support.web import check_problem, http


@pytest.fixture
def web(shared_instance: TestInstance) -> Iterator[httpx.Client]:
    with http(shared_instance) as client:
        yield client


def test_the_report_is_the_sum_of_all_attempts_after_kills_retries_and_new_prices() -> (
    None
):
    settings = {
        "GPUYARD_SCHEDULER__RETRY_BASE_S": "0.1",
        # So that a moment costs something.
        "GPUYARD_BILLING__LOCAL_PRICE_PER_HOUR": "3600",
    }
    with make_instance(**settings) as instance:
        running = instance.submit(["sleep", "600"], project="vision")
        instance.wait(running, "running")
        failing = instance.submit(["false"], retry_count=1, project="language")
        instance.wait(failing, "failed")
        instance.kill("server")
        instance.environment["GPUYARD_BILLING__LOCAL_PRICE_PER_HOUR"] = "7200"
        instance.environment["GPUYARD_BILLING__CURRENCY"] = "EUR"
        instance.ok("up")
        instance.ok("run", "--project", "vision", "--", "true")
        marked = instance.json("report")
        lines = {line["key"]: line for line in marked["items"]}
        assert lines["language"]["attempts"] == 2
        assert Decimal(lines["language"]["waste"]) == amount_of(instance, failing)
        still = [each for each in marked["items"] if each["running_attempts"]]
        assert [each["key"] for each in still] == ["vision"]
        instance.kill("server", "agent")
        instance.ok("up")
        instance.ok("cancel", running)
        instance.wait(running)
        assert_adds_up(instance)


def amount_of(instance: TestInstance, job_id: str) -> Decimal:
    return Decimal(instance.json("show", job_id)["cost"]["amount"])


def assert_adds_up(instance: TestInstance) -> None:
    """Every report, and the bill, have the sums of what the jobs say."""
    jobs = instance.json("jobs")["items"]
    spent: dict[str, Decimal] = {}
    for attempt in [each for job in jobs for each in job["attempts"]]:
        cost = attempt["cost"]
        before = spent.get(cost["currency"], Decimal(0))
        spent[cost["currency"]] = before + Decimal(cost["amount"])
    assert set(spent) == {"USD", "EUR"}
    for by in ("user", "project", "tier", "provider", "gpu", "day", "week", "month"):
        found = instance.json("report", "--by", by)
        assert {s["currency"]: Decimal(s["amount"]) for s in found["sums"]} == spent
        assert found["total"] is None
        assert found["missing_rates"] == [{"currency": "USD", "before": None}]
        printed = instance.ok("report", "--by", by, "--csv")
        rows = list(csv.DictReader(printed.splitlines()))
        amounts = [Decimal(row["amount"]) for row in rows]
        assert sum(amounts) == sum(spent.values())
    said = instance.ok("report")
    assert "TOTAL" in said
    assert "of it waste" in said
    assert "no rate of USD" in said
    bill = instance.work / "bill.csv"
    instance.ok("report", "--focus", str(bill))
    charges = list(csv.DictReader(bill.read_text().splitlines()))
    assert sum(Decimal(each["BilledCost"]) for each in charges) == sum(spent.values())
    assert {each["SubAccountId"] for each in charges} == {"vision", "language"}
    assert json.loads(charges[0]["Tags"])["gpuyard/user"] == "owner"


def test_the_use_of_gpus_is_measured_and_what_was_idle_has_its_line(
    fake_gpus: FakeGpus,
) -> None:
    uuid = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
    fake_gpus.add(uuid)
    fake_gpus.set(uuid, utilization=25, memory_used_mb=5000)
    settings = {"GPUYARD_NODE__USAGE_S": "0.2"}
    with make_instance(**fake_gpus.env(), **settings) as instance:
        job = instance.submit(["sleep", "600"], resources={"gpus": {"count": 1}})
        instance.wait(job, "running")

        def has_points() -> bool:
            with http(instance) as web:
                found = web.get(
                    f"/api/v1/jobs/{job}/metrics",
                    params={"name": "system/gpu0_utilization"},
                ).json()["items"]
            return bool(found) and found[0]["count"] > 2

        wait_until(has_points, what="its use to be measured")
        instance.ok("cancel", job)
        instance.wait(job)
        (line,) = instance.json("report", "--by", "gpu")["items"]
        assert line["measured_gpu_hours"] == pytest.approx(line["gpu_hours"])
        assert line["idle_gpu_hours"] == pytest.approx(0.75 * line["gpu_hours"])
        assert line["key"] == "a100-40gb"
        assert "of it idle" in instance.ok("report")
        (attempt,) = instance.json("show", job)["attempts"]
        assert attempt["usage"]["gpu_memory_mb"] == 5000
        advice = instance.json("report", "--advice")
        assert advice["gpu_hours_measured"] == pytest.approx(line["gpu_hours"])
        assert advice["memory_measured"] == 1
        said = instance.ok("report", "--advice")
        assert "No advice." in said  # of a few seconds
        assert "the memory of 0 of 1 attempts" in said


def test_both_clients_and_dates_as_people_write_them(
    shared_instance: TestInstance,
) -> None:
    shared_instance.ok("run", "--", "true")
    with shared_instance.client() as client:
        found = client.costs("tier", timezone="Europe/Berlin")

    async def ask() -> None:
        async with AsyncClient(shared_instance.address()) as client:
            again = await client.costs("tier", begin=found.begin, end=found.end)
            assert again.items == found.items
            saved = await client.export_costs(shared_instance.work / "focus.csv")
            assert saved.read_text().startswith("BilledCost,")

    asyncio.run(ask())
    begin = found.begin
    assert found.items
    for words in (
        ["--from", "7 days ago"],
        ["--from", "yesterday", "--to", "now", "--timezone", "Asia/Kolkata"],
        ["--from", "2026-01-01"],
    ):
        report = shared_instance.json("report", *words)
        assert report["begin"] < report["end"]
    empty = shared_instance.ok("report", "--month", "2020-02")
    assert "No attempt ran in this time." in empty
    month = shared_instance.json(
        "report", "--month", "2026-10", "--timezone", "Europe/Berlin"
    )
    assert month["end"] - month["begin"] == (31 * 24 + 1) * 3600
    assert begin < found.end


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--by", "moon"], "'moon' is not one of"),
        (["--from", "tomorrowish"], "--from: 'tomorrowish' is no time"),
        (["--month", "2026-13"], "--month: '2026-13' is no month"),
        (["--month", "2026-10", "--to", "now"], "--month: does not go with"),
        (["--from", "2026-02-01", "--to", "2026-01-01"], "from: is"),
        (["--timezone", "Europe/Berlim"], "did you mean Europe/Berlin"),
        (["--csv", "--json"], "--csv: does not go with --json"),
        (["--by", "day", "--from", "1990-01-01"], "more than 3660 days"),
    ],
)
def test_what_is_no_report_is_refused(
    shared_instance: TestInstance, words: list[str], said: str
) -> None:
    done = shared_instance.run("report", *words)
    assert done.returncode == 2
    assert said in done.stderr


def test_the_route_refuses_what_is_no_time(web: httpx.Client) -> None:
    for params in ({"from": "-1"}, {"to": "nan"}, {"timezone": "Mars"}, {"by": "x"}):
        check_problem(web.get("/api/v1/costs", params=params), 422, "invalid_input")
