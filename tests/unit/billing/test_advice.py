"""Advice on costs: only from what was measured, and with what it would have saved."""

from dataclasses import replace
from decimal import Decimal

import pytest

from gpuyard.billing.advice import CostAdviser, SpotOffer, spot_offers
from gpuyard.billing.ended_attempts import EndedAttempt
from gpuyard.domain.cost_advice import AdviceTopic, CostAdvice, CostAdviceReport
from gpuyard.domain.offers import Offer
from gpuyard.domain.tiers import Tiers

# Ten hours in the largest tier, most of which was used.
GOOD = EndedAttempt(
    job_id="job_1",
    user="ana",
    program="train",
    tier="GPU_LARGE",
    currency="USD",
    basis="list",
    offer="",
    cost=Decimal("20.12"),
    ran_s=36_000.0,
    nodes=1,
    gpus=1,
    cpus=8.0,
    has_completed=True,
    has_saved=False,
    asked_for_spot=False,
    gpu_used=0.9,
    cores_used=3.0,
    memory_gb=20.0,
    gpu_memory_gb=20.0,
)
ON_DEMAND = replace(GOOD, basis="metered", offer="k8s/a100", tier=None)
SPOT = {"k8s/a100": SpotOffer("k8s/a100-spot", Decimal("0.4"), 0.1)}


def advised(
    *attempts: EndedAttempt,
    tiers: Tiers | None = Tiers(),  # noqa: B008 - never changed
    spot: dict[str, SpotOffer] | None = None,
) -> CostAdviceReport:
    adviser = CostAdviser(tiers, spot or {})
    for attempt in attempts:
        adviser.add(attempt)
    return adviser.report(0.0, 1.0)


def only(found: CostAdviceReport) -> CostAdvice:
    (item,) = found.items
    return item


def test_no_advice_is_an_answer() -> None:
    found = advised(GOOD)
    assert found.items == []
    assert (found.attempts, found.memory_measured) == (1, 1)
    assert (found.gpu_hours, found.gpu_hours_measured) == (10.0, 10.0)


def test_what_nobody_measured_gets_no_advice_and_is_counted() -> None:
    blind = replace(
        GOOD, gpu_used=None, cores_used=None, memory_gb=None, gpu_memory_gb=None
    )
    found = advised(blind, replace(GOOD, memory_gb=1.0, gpu_memory_gb=None))
    assert found.items == []
    assert (found.attempts, found.memory_measured) == (2, 1)
    assert (found.gpu_hours, found.gpu_hours_measured) == (20.0, 10.0)


def test_gpus_that_were_idle_most_of_the_time() -> None:
    found = advised(
        replace(GOOD, gpu_used=0.2),
        replace(GOOD, gpu_used=0.3, job_id="job_2", cost=Decimal("30.00")),
        replace(GOOD, gpu_used=0.5, job_id="job_3"),
    )
    item = only(found)
    assert item.topic is AdviceTopic.GPU_IDLE
    assert (item.user, item.program, item.attempts) == ("ana", "train", 2)
    assert item.jobs == ["job_2", "job_1"]  # the dearest first
    assert item.amount == Decimal("50.12")
    assert item.saved == Decimal("20.12") * Decimal("0.8") + 30 * Decimal("0.7")
    assert "busy 25% of 20.0 GPU hours" in item.measured


def test_gpus_that_wait_for_processors_are_told_apart() -> None:
    item = only(advised(replace(GOOD, gpu_used=0.3, cores_used=7.5)))
    assert item.topic is AdviceTopic.GPU_WAITS_FOR_DATA
    assert "--cpus" in item.remedy


def test_a_smaller_tier_that_would_have_done() -> None:
    small = replace(GOOD, memory_gb=9.0, gpu_memory_gb=7.0, ran_s=7200.0)
    small = replace(small, cost=Decimal("4.024"), cores_used=2.0)
    item = only(advised(small))
    assert (item.topic, item.instead) == (AdviceTopic.TIER_TOO_LARGE, "GPU_SMALL")
    assert item.saved == Decimal("4.024") - Decimal("1.052")
    assert "9.0 GB of memory and 7.0 GB of each GPU" in item.measured
    assert "cost 1.05 USD" in item.remedy


@pytest.mark.parametrize(
    "needs",
    [
        {"ran_s": 7201.0},
        {"memory_gb": 14.0},
        {"cores_used": 3.5},
    ],
    ids=["longer than it may run there", "memory", "cores"],
)
def test_the_smaller_tier_has_all_that_was_used(needs: dict[str, float]) -> None:
    small = replace(GOOD, memory_gb=9.0, gpu_memory_gb=7.0, ran_s=7200.0)
    item = only(advised(replace(small, cores_used=2.0), replace(small, **needs)))
    assert item.instead == "GPU_MEDIUM"


@pytest.mark.parametrize(
    "other",
    [
        {"has_completed": False},
        {"nodes": 2},
        {"basis": "metered"},
        {"currency": "EUR"},
        {"ran_s": 299.0},
    ],
    ids=["failed", "several nodes", "metered", "another currency", "too short"],
)
def test_where_no_smaller_tier_is_known_to_do(other: dict[str, object]) -> None:
    small = replace(GOOD, memory_gb=2.0, gpu_memory_gb=2.0, cores_used=1.0)
    assert advised(replace(small, **other)).items == []  # pyright: ignore[reportArgumentType]


def test_where_all_tiers_cost_the_same_none_is_too_large() -> None:
    small = replace(GOOD, memory_gb=2.0, gpu_memory_gb=2.0, cores_used=1.0)
    assert advised(small, tiers=None).items == []


@pytest.mark.parametrize(
    ("attempt", "why"),
    [
        (replace(ON_DEMAND, has_saved=True), "each left a checkpoint"),
        (replace(ON_DEMAND, ran_s=3600.0), "each ran for 60 minutes at most"),
    ],
)
def test_spot_would_have_done(attempt: EndedAttempt, why: str) -> None:
    item = only(advised(attempt, spot=SPOT))
    assert (item.topic, item.instead) == (AdviceTopic.SPOT, "k8s/a100-spot")
    assert item.measured.endswith(why)
    # A tenth of it is interrupted, and paid for twice.
    assert item.saved == Decimal("20.12") * (1 - Decimal("0.44"))


@pytest.mark.parametrize(
    "other",
    [{}, {"ran_s": 60.0, "asked_for_spot": True}, {"ran_s": 60.0, "offer": "k8s/t4"}],
    ids=["long, without checkpoint", "had it", "none of these machines"],
)
def test_where_spot_is_not_known_to_do(other: dict[str, object]) -> None:
    assert advised(replace(ON_DEMAND, **other), spot=SPOT).items == []  # pyright: ignore[reportArgumentType]


def test_the_spot_offer_of_the_same_machines() -> None:
    offer = Offer("k8s/a", "k8s", gpu="A100", gpus=1, price_per_hour=Decimal(4))
    spot = replace(offer, id="k8s/b", spot=True, price_per_hour=Decimal(1))
    interrupted = {"k8s/b": 0.1, "k8s/c": 0.1}
    assert spot_offers([offer, spot], interrupted)["k8s/a"].price == Decimal("0.25")
    cheaper = replace(spot, id="k8s/c", price_per_hour=Decimal("0.5"))
    assert spot_offers([offer, spot, cheaper], interrupted)["k8s/a"].id == "k8s/c"
    for other in (
        replace(spot, region="far"),
        replace(spot, gpus=2),
        replace(spot, price_per_hour=Decimal(5)),
        replace(spot, currency="EUR"),
        replace(spot, problem="sold out"),
    ):
        assert spot_offers([offer, other], interrupted) == {}
    assert spot_offers([offer, spot], {"k8s/b": 0.5}) == {}


def test_what_saves_most_comes_first() -> None:
    items = advised(
        replace(GOOD, gpu_used=0.4),
        replace(GOOD, gpu_used=0.1, program="other"),
    ).items
    assert [item.program for item in items] == ["other", "train"]
