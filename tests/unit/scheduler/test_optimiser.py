"""Which offer is best: filter, fit and score, learned from what was seen."""

import random
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.domain.gpus import resolve_gpu_class
from gpuyard.domain.offers import Offer, Strategy
from gpuyard.domain.shape import Shape
from gpuyard.scheduler.external_queues import ExternalQueue, suits, unmet_needs
from gpuyard.scheduler.history import AttemptEnd, History
from gpuyard.scheduler.optimiser import Need, ranked
from tests.unit.scheduler.world import World

ONE = Shape(gpus=1, spot=True)


def offer(name: str, gpu="A100", price: str | None = "2", **fields) -> Offer:
    provider = fields.pop("provider", "cloud")
    values = {"gpus": 1, "gpu_memory_gb": 40, "cpus": 8, "memory_gb": 64, **fields}
    return Offer(
        f"{provider}/{name}",
        provider,
        gpu,
        price_per_hour=price and Decimal(price),
        **values,
    )


T4 = offer("t4", "T4", "0.5", gpu_memory_gb=16, wait_s=10)
A100 = offer("a100", "A100", "3", wait_s=600)
H100 = offer("h100", "H100", "7", gpu_memory_gb=80, wait_s=1200)
ALL = (T4, A100, H100)
LONG = Need(36000.0)


def order(
    strategy: Strategy,
    *offers: Offer,
    history: History | None = None,
    need=LONG,
    shape=ONE,
) -> list[str]:
    found = ranked(offers or ALL, shape, need, history or History(), strategy)
    return [forecast.offer.id.partition("/")[2] for forecast in found]


def test_cost_counts_the_whole_job_and_not_the_hour():
    assert order(Strategy.COST)[0] == "h100", (
        "989 / 65 times as fast at 14 times the price"
    )
    assert order(Strategy.COST, T4, offer("dear", "H100", "80", gpu_memory_gb=80)) == [
        "t4",
        "dear",
    ]


def test_performance_takes_the_shortest_run_and_availability_the_shortest_wait():
    assert order(Strategy.PERFORMANCE) == ["h100", "a100", "t4"]
    assert order(Strategy.AVAILABILITY) == ["t4", "a100", "h100"]


def test_balanced_weighs_a_wait_against_the_price():
    near = offer("near", price="3", wait_s=0)
    far = offer("far", price="2.9", wait_s=36000)
    assert order(Strategy.COST, near, far) == ["far", "near"]
    assert order(Strategy.BALANCED, near, far) == ["near", "far"]
    cheap = offer("cheap", price="1", wait_s=600)
    assert order(Strategy.BALANCED, near, cheap) == ["cheap", "near"]


def test_a_short_job_goes_where_it_starts_at_once():
    assert order(Strategy.BALANCED, need=Need(60.0))[0] == "t4"


def test_waits_that_were_seen_beat_what_the_provider_says():
    history = History()
    for _ in range(5):
        history.note_wait("cloud/t4", 7200.0)
    assert order(Strategy.AVAILABILITY, history=history) == ["a100", "h100", "t4"]


@pytest.mark.parametrize("end", [AttemptEnd.FAILED, AttemptEnd.INTERRUPTED])
def test_a_place_that_loses_jobs_costs_more_than_it_says(end):
    good = offer("good", price="2.2")
    bad = offer("bad", price="2")
    assert order(Strategy.COST, good, bad) == ["bad", "good"]
    history = History()
    for _ in range(20):
        history.note_end("cloud/bad", end)
        history.note_end("cloud/good", AttemptEnd.WELL)
    for strategy in Strategy:
        assert order(strategy, good, bad, history=history) == ["good", "bad"]


def test_spot_is_expected_to_be_interrupted_until_it_has_shown_otherwise():
    spot = offer("spot", price="1.95", spot=True)
    sure = offer("sure", price="2")
    assert order(Strategy.COST, spot, sure) == ["sure", "spot"]
    history = History()
    for _ in range(60):
        history.note_end("cloud/spot", AttemptEnd.WELL)
    assert order(Strategy.COST, spot, sure, history=history) == ["spot", "sure"]


def test_an_offer_that_had_nothing_is_expected_to_take_longer():
    history = History()
    for _ in range(10):
        history.note_end("cloud/one", AttemptEnd.NO_CAPACITY)
    assert order(
        Strategy.AVAILABILITY, offer("one"), offer("two"), history=history
    ) == ["two", "one"]


def test_where_a_job_has_run_its_files_are():
    here = offer("x", provider="here")
    there = offer("x", price="1.99", provider="there")
    found = ranked(
        (here, there),
        ONE,
        Need(600.0, data_provider="here"),
        History(),
        Strategy.BALANCED,
    )
    assert [item.offer.provider for item in found] == ["here", "there"]


def test_a_price_in_another_currency_counts_at_its_rate_and_without_one_is_not_taken_for_cheap():
    cny = offer("cny", price="10", currency="CNY", rate=0.14)
    assert order(Strategy.COST, cny, offer("usd", price="1.5")) == ["cny", "usd"]
    unknown = offer("unknown", price="0.01", currency="XYZ", rate=None)
    assert order(Strategy.COST, unknown, offer("usd", price="90")) == ["usd", "unknown"]
    assert ranked((unknown,), ONE, Need(), History(), Strategy.COST)[0].cost is None


def test_what_nobody_bills_costs_nothing():
    assert order(
        Strategy.COST, offer("own", price=None), offer("rented", price="0.01")
    ) == ["own", "rented"]


def test_equal_offers_stand_in_the_order_of_their_ids():
    same = [offer(name) for name in "cab"]
    for strategy in Strategy:
        assert order(strategy, *same) == ["a", "b", "c"]


def test_a_divisible_node_is_paid_by_the_gpu():
    eight = offer("eight", price="16", gpus=8, divisible=True)
    assert ranked((eight,), Shape(gpus=2), Need(), History(), Strategy.COST)[
        0
    ].per_hour == pytest.approx(4)
    assert ranked(
        (eight,), Shape(gpus=2, nodes=1), Need(3600), History(), Strategy.COST
    )[0].cost == pytest.approx(4 * (1 + 0.5 * 0.02 / 0.98))


@pytest.mark.parametrize(
    "shape", [Shape(gpus=2, max_price=1.0), Shape(cpus=4, max_price=1.0)]
)
def test_what_has_none_of_what_is_asked_for_is_refused_in_words(shape):
    empty = offer("none", "", "2", gpus=0, cpus=0, gpu_memory_gb=0, divisible=True)
    assert any("max_price" in reason for reason in unmet_needs(empty, shape))


def test_a_kind_of_gpu_that_turns_out_slow_is_known_as_slow():
    history = History()
    for _ in range(10):
        history.note_run("train", "h100-80gb", 1000.0)
        history.note_run("train", "a100-40gb", 1000.0)
    assert history.speed("h100-80gb") == pytest.approx(
        history.speed("a100-40gb"), rel=0.35
    )
    before = History()
    assert before.speed("h100-80gb") / before.speed("a100-40gb") > 3


def test_a_type_seen_on_one_kind_only_says_nothing_of_its_speed():
    history = History()
    for _ in range(50):
        history.note_run("long", "t4", 100_000.0)
        history.note_run("short", "h200", 1.0)
    assert history.speed("t4") == pytest.approx(65, rel=0.05)
    assert history.speed("h200") == pytest.approx(989, rel=0.05)


_SHAPES = st.builds(
    Shape,
    gpus=st.integers(0, 9),
    nodes=st.integers(1, 3),
    cpus=st.sampled_from([0.5, 8, 9]),
    memory_gb=st.sampled_from([0, 64, 65]),
    gpu_class=st.sampled_from(["", "a100", "t4", "a100-80gb"]),
    gpu_memory_gb=st.sampled_from([0, 16, 40, 80]),
    gpu_capability=st.sampled_from(["", "7.5", "9.0"]),
    regions=st.sampled_from([(), ("eu",), ("eu", "us")]),
    max_price=st.sampled_from([0, 1, 5.0]),
    spot=st.booleans(),
    image=st.booleans(),
    owned=st.booleans(),
    provider=st.sampled_from(["", "cloud", "other"]),
    gpu_uuids=st.sampled_from([(), ("GPU-1",)]),
)
_OFFERS = st.builds(
    offer,
    st.just("x"),
    gpu=st.sampled_from(["A100", "T4", "", "Strange"]),
    price=st.sampled_from([None, "0.7", "4"]),
    gpus=st.integers(0, 8),
    gpu_memory_gb=st.sampled_from([0, 16, 40, 80]),
    nodes=st.integers(1, 3),
    region=st.sampled_from(["", "eu", "asia"]),
    spot=st.booleans(),
    containers=st.booleans(),
    processes=st.booleans(),
    rate=st.sampled_from([1.0, 0.1, None]),
    divisible=st.booleans(),
)


@given(_OFFERS, _SHAPES)
def test_the_fast_filter_and_the_one_in_words_agree(one, shape):
    wanted = resolve_gpu_class(shape.gpu_class) if shape.gpu_class else None
    assert suits(one, shape, wanted) == (not unmet_needs(one, shape))


@pytest.mark.parametrize(
    ("found", "shape", "said"),
    [
        (
            offer("x", spot=True),
            Shape(gpus=1),
            "is spot, and the job does not allow interruptions (spot)",
        ),
        (
            offer("x", region="us"),
            Shape(gpus=1, regions=("eu",)),
            "is in region us; the job allows eu",
        ),
        (
            offer("x"),
            Shape(gpus=1, regions=("eu",)),
            "names no region; the job allows eu",
        ),
        (
            offer("x", price="4"),
            Shape(gpus=1, nodes=1, max_price=3.5),
            "costs 4 an hour, and max_price is 3.5",
        ),
        (
            offer("x", currency="CNY", rate=None),
            Shape(gpus=1, max_price=9),
            (
                "has its price in CNY, of which no rate is known (billing.rates);"
                " max_price is set"
            ),
        ),
    ],
)
def test_what_is_said_of_an_offer_that_is_not_allowed(found, shape, said):
    assert unmet_needs(found, shape) == [said]


@given(
    st.lists(st.sampled_from([*Strategy]), min_size=1, max_size=3),
    st.integers(0, 2**32),
)
def test_the_ranking_does_not_depend_on_the_order_of_the_offers(strategies, seed):
    offers = [
        offer(
            f"o{n}",
            random.Random(n).choice(["A100", "T4"]),
            str(1 + n % 3),
            wait_s=n % 4,
        )
        for n in range(12)
    ]
    for strategy in strategies:
        mixed = random.Random(seed).sample(offers, len(offers))
        assert order(strategy, *mixed) == order(strategy, *offers)


# --- in the line ---


@pytest.fixture
def world() -> World:
    world = World()
    queue = ExternalQueue(
        "cloud", max_pending=3, offers={item.id: item for item in ALL}
    )
    world.view.add_external_queues({"cloud": queue})
    return world


def sent(world: World) -> list[str]:
    return [places[0].offer for places in world.decide(run=False).values()]


def test_a_job_is_sent_to_the_best_offer_and_by_its_own_strategy(world):
    world.submit(gpus=1, strategy="availability")
    world.submit(gpus=1, strategy="performance")
    assert sorted(sent(world)) == ["cloud/h100", "cloud/t4"]


def test_what_had_nothing_is_followed_by_the_next_best_and_asked_again_ever_less_often(
    world,
):
    queues = world.view.external_queues
    queues.note_no_capacity("cloud/h100", world.now)
    world.submit(gpus=1, strategy="performance")
    assert sent(world) == ["cloud/a100"]
    assert queues.retry_at["cloud/h100"] == world.now + 60
    for _ in range(20):
        queues.note_no_capacity("cloud/h100", world.now)
    assert queues.retry_at["cloud/h100"] == world.now + 3600
    queues.note_start("cloud/h100", 1.0)
    queues.note_no_capacity("cloud/h100", world.now)
    assert queues.retry_at["cloud/h100"] == world.now + 60, "it had something meanwhile"


def test_the_history_is_that_of_the_attempts(world):
    job = world.submit(gpus=1, strategy="performance")
    assert sent(world) == ["cloud/h100"]
    world.now += 900
    world.run(job)
    assert (
        world.view.external_queues.history.risk("cloud/h100", spot=False).wait_s == 900
    )
    world.end(job)
    assert list(world.view.external_queues.history.records["cloud/h100"].ends) == [
        AttemptEnd.WELL
    ]


def test_why_ranks_what_suits_and_says_what_the_others_lack(world):
    queues = world.view.external_queues
    for name in ("a100", "h100"):
        queues.note_no_capacity(f"cloud/{name}", world.now)
    job = world.submit(gpus=1, gpu_memory_gb=40, strategy="performance")
    assert sent(world) == []
    names = [(item.name, item.would_fit_empty) for item in world.why(job).candidates]
    assert names == [("cloud/h100", True), ("cloud/a100", True), ("cloud/t4", False)]
    first, _, last = world.why(job).candidates
    assert "costs" in first.expects and "had nothing left" in first.reasons[0]
    assert last.reasons == ("has GPUs with 16 GB of memory, 40 GB needed",)
