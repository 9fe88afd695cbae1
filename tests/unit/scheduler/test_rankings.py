"""Rankings that are kept between decisions are those that would be made anew."""

import random
from decimal import Decimal

import pytest

from gpuyard.domain.offers import Offer, Strategy
from gpuyard.domain.shape import Shape
from gpuyard.scheduler import rankings
from gpuyard.scheduler.external_queues import ExternalQueue, ExternalQueueTable
from gpuyard.scheduler.history import AttemptEnd
from gpuyard.scheduler.optimiser import Need
from gpuyard.scheduler.rankings import about

SHAPE = Shape(gpus=1, spot=True)
NEED = about(Need(5000.0))


def offers(count: int) -> dict[str, Offer]:
    dice = random.Random(count)
    made = (
        Offer(
            f"cloud/{number:03d}",
            "cloud",
            dice.choice(("l4", "a100_80gb", "h100_sxm")),
            dice.choice((1, 2, 8)),
            cpus=8,
            memory_gb=64,
            price_per_hour=Decimal(dice.randrange(100, 900)) / 100,
            spot=number % 3 == 0,
        )
        for number in range(count)
    )
    return {offer.id: offer for offer in made}


@pytest.fixture
def table() -> ExternalQueueTable:
    return ExternalQueueTable({"cloud": ExternalQueue("cloud", offers=offers(60))})


def kept(table: ExternalQueueTable, shape: Shape = SHAPE) -> list[str]:
    found = table.kept_ranking(shape, NEED, Strategy.BALANCED)
    return [forecast.offer.id for forecast in found]


def anew(table: ExternalQueueTable, shape: Shape = SHAPE) -> list[str]:
    found = table.ranked_offers(shape, NEED, Strategy.BALANCED)
    return [forecast.offer.id for forecast in found]


def test_each_end_and_wait_moves_the_offer_as_a_new_ranking_would(table):
    dice = random.Random(3)
    names = list(table.by_name["cloud"].offers)
    before = kept(table)
    assert before == anew(table)
    for _ in range(300):
        offer = dice.choice(names)
        table.history.note_end(offer, dice.choice(list(AttemptEnd)))
        table.note_start(offer, dice.expovariate(1 / 600))
        assert kept(table) == anew(table)
    assert kept(table) != before


def test_more_news_than_are_remembered_are_not_missed(table):
    best = kept(table)[0]
    for _ in range(1000):
        table.history.note_end(best, AttemptEnd.FAILED)
    assert kept(table) == anew(table)
    assert kept(table)[0] != best


def test_new_offers_scores_and_speeds_are_heeded(table):
    before = kept(table)
    score = {
        "score": 0.01,
        "quarantined_until": None,
        "reason": None,
        "updated_at": 1.0,
    }
    table.trust.note(before[0], score)
    assert kept(table) == anew(table) != before
    for _ in range(20):
        table.history.note_run("train", "l4", 10.0)
        table.history.note_run("train", "h100-sxm", 900.0)
    assert kept(table) == anew(table)
    table.by_name["cloud"].offers = offers(40)
    assert kept(table) == anew(table)
    assert len(kept(table)) == 40


def test_another_job_gets_another_ranking_and_the_oldest_go(table, monkeypatch):
    monkeypatch.setattr(rankings, "_MOST_FORECASTS", 100)
    for gpus in (1, 8, 2, 1):
        shape = Shape(gpus=gpus)
        assert kept(table, shape) == anew(table, shape)


def test_rankings_of_old_offers_are_not_kept(table):
    for gpus in (1, 2, 8):
        kept(table, Shape(gpus=gpus))
    table.by_name["cloud"].offers = offers(50)
    kept(table)
    assert len(table._rankings._kept) == 1


def test_needs_that_hardly_differ_are_one():
    assert about(Need(3600.0)) == about(Need(3610.0)) != about(Need(3900.0))
    assert about(Need(3600.0)).run_s == pytest.approx(3600.0, rel=0.01)
    assert about(Need(0.0, "slurm")) == Need(0.0, "slurm")
