"""Where a job goes that may run on spot, after interruptions and before its deadline."""

from decimal import Decimal

import pytest

from gpuyard.domain.events import Change, Table
from gpuyard.domain.offers import Offer
from gpuyard.scheduler.external_queues import ExternalQueue
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.spot import InterruptedZones
from tests.unit.scheduler.world import World

ON_DEMAND = "cloud/a/gpu/on-demand"
SPOT_A = "cloud/a/gpu/spot"
SPOT_B = "cloud/b/gpu/spot"


def offer(name: str, price: str) -> Offer:
    return Offer(
        name,
        "cloud",
        "a100",
        1,
        cpus=8,
        memory_gb=64,
        zone=name.split("/")[1],
        spot=name.endswith("/spot"),
        price_per_hour=Decimal(price),
        billed=True,
    )


@pytest.fixture
def world() -> World:
    world = World()
    found = [offer(ON_DEMAND, "3"), offer(SPOT_A, "1"), offer(SPOT_B, "1.1")]
    offers = {one.id: one for one in found}
    world.view.add_external_queues({"cloud": ExternalQueue("cloud", offers=offers)})
    return world


def place_of(world: World) -> str:
    (placements,) = world.decide().values()
    return placements[0].offer


def interrupt(world: World, job: str) -> None:
    ended = {
        "state": "ended",
        "reason": "preempted",
        "ended_at": world.now,
        "cost": "0",
    }
    world.record(
        Change(Table.ATTEMPTS, f"attempt_{job}", ended),
        Change(Table.JOBS, job, {"state": "queued", "reason": "preempted"}),
    )


def test_it_goes_to_other_zones_first_and_after_three_times_on_demand(world: World):
    job = world.submit(gpus=1, spot=True)
    seen = [place_of(world)]
    for _ in range(3):
        interrupt(world, job)
        seen.append(place_of(world))
    # Both zones have interrupted it after two times, so the price decides again.
    assert seen == [SPOT_A, SPOT_B, SPOT_A, ON_DEMAND]


def test_a_zone_is_as_good_as_others_again_after_half_an_hour():
    zones = InterruptedZones()
    interrupted = offer(SPOT_A, "1")
    zones.note(interrupted, 1000.0)
    assert zones.has(interrupted, 2000.0)
    assert not zones.has(offer(SPOT_B, "1"), 2000.0)
    assert not zones.has(offer(ON_DEMAND, "1"), 2000.0)
    assert not zones.has(interrupted, 2801.0)


@pytest.mark.parametrize(("left_s", "place"), [(3600, ON_DEMAND), (36_000, SPOT_A)])
def test_it_takes_no_spot_if_it_could_not_run_twice_before_its_deadline(
    world: World, left_s: float, place: str
):
    world.submit(gpus=1, spot=True, deadline=world.now + left_s, estimated_s=2000)
    assert place_of(world) == place


def test_it_takes_spot_where_nothing_else_is_left(world: World):
    queue = world.view.external_queues.by_name["cloud"]
    queue.offers = {SPOT_A: queue.offers[SPOT_A]}
    world.submit(gpus=1, spot=True, deadline=world.now + 60)
    assert place_of(world) == SPOT_A


def test_how_often_is_a_setting():
    assert Policy().spot_attempts == 3
