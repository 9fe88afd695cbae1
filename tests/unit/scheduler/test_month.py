"""The quota of GPU hours in a month."""

import pytest

from gpuyard.domain.events import Change, Table
from gpuyard.scheduler.parties import Quota, Quotas
from gpuyard.scheduler.policy import Policy, QueueOrder
from gpuyard.scheduler.usage import Usage
from tests.unit.scheduler.world import World

HOUR = 3600.0
MONTH = 100 * HOUR


def month_of(now: float) -> tuple[float, float]:
    begin = now // MONTH * MONTH
    return begin, begin + MONTH


@pytest.fixture(params=[QueueOrder.BACKFILL, QueueOrder.FAIR])
def world(request) -> World:
    """Ana may use 10 GPU hours in a month, project vision 15."""
    limits = Quota(gpu_hours_per_month=10.0)
    quotas = Quotas({"ana": limits}, {"vision": Quota(gpu_hours_per_month=15.0)})
    is_fair = request.param is QueueOrder.FAIR
    usage = Usage(quotas=quotas, by_share=is_fair, month_of=month_of)
    world = World(Policy(request.param, end_margin_s=0.0), usage)
    world.node("box", gpus=4)
    return world


def test_when_the_hours_are_used_further_jobs_wait_for_the_next_month(world):
    world.now = 50 * HOUR
    running = world.submit(gpus=2, owner="ana", project=None)
    world.decide()
    world.now += 5.1 * HOUR
    waiting = world.submit(gpus=1, owner="ana", project=None)
    # What runs goes on, others start, and so do jobs without GPUs.
    assert not world.decide_for(waiting)
    assert world.decide_for(world.submit(gpus=1, owner="bob", project=None))
    assert world.decide_for(world.submit(owner="ana", project=None))
    why = world.why(waiting)
    assert why.constraint == "quota"
    assert why.summary == (
        "Ana may use 10 GPU hours in a month (the quota gpu_hours_per_month), and has"
        " used 10.2. The month ends at 1970-01-05T04:00:00Z."
    )
    assert why.estimate_s == pytest.approx(44.9 * HOUR)
    assert world.wake_at() <= MONTH
    ended = {"state": "ended", "started_at": 50 * HOUR, "ended_at": world.now}
    world.record(Change(Table.ATTEMPTS, f"attempt_{running}", ended))
    world.set_job(running, state="completed")
    assert not world.decide_for(waiting)
    world.now = MONTH
    assert world.decide_for(waiting)


def test_what_runs_into_the_next_month_counts_in_both(world):
    world.now = MONTH - 4 * HOUR
    world.submit(gpus=3, owner="bob", project="vision")
    world.decide()
    world.now = MONTH + 4.9 * HOUR
    assert world.decide_for(world.submit(gpus=1, owner="bob", project="vision"))
    world.now += 0.1 * HOUR
    assert not world.decide_for(world.submit(gpus=1, owner="ana", project="vision"))


def test_a_clock_that_is_set_back_gives_no_second_month(world):
    world.now = MONTH + 4 * HOUR
    month = world.view.usage.month
    month.turn(world.now)
    month.settled["user", "ana"] = 11 * HOUR
    job = world.submit(gpus=1, owner="ana", project=None)
    assert not world.decide_for(job)
    world.now = MONTH - HOUR
    assert not world.decide_for(job)
    world.now = MONTH + HOUR
    assert not world.decide_for(job)
