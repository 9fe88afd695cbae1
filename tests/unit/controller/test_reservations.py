"""Which reservations are refused, and what the refusal says."""

from zoneinfo import ZoneInfo

import pytest

from gpuyard.controller.reservations import live_reservation, refuse_conflict
from gpuyard.domain.errors import RefusedError
from gpuyard.domain.local_times import moment_in
from gpuyard.scheduler.nodes import REMOVED
from tests.unit.scheduler.world import L4, T4, World

UTC = ZoneInfo("UTC")


def at(text: str) -> float:
    return moment_in("begins", f"2026-12-01 {text}", UTC, 0.0)


def wanted(begins: str, ends: str, gpus: int | None = 1, **fields: str):
    row = {
        "project": "text",
        "owner": None,
        "gpus": gpus,
        "gpu_class": None,
        "node": None,
        "begins_at": at(begins),
        "ends_at": at(ends),
    }
    return live_reservation("reservation_new", row | fields)


@pytest.fixture
def world() -> World:
    world = World()
    world.node("one", gpus=2, card=L4)
    world.node("two", gpus=2, card=T4)
    return world


def test_one_that_conflicts_names_the_others_and_the_free_time(world):
    first = world.reserve(at("09:00"), at("12:00"), "vision", gpus=3)
    world.reserve(at("12:00"), at("13:00"), "vision", gpus=4)
    refuse_conflict(world.view, wanted("11:00", "12:00", 1), UTC)
    with pytest.raises(RefusedError) as caught:
        refuse_conflict(world.view, wanted("11:00", "11:30", 2), UTC)
    assert str(caught.value) == (
        "2 GPUs cannot be reserved from 2026-12-01 11:00+00:00 to 2026-12-01"
        f" 11:30+00:00, because of {first} (3 GPUs for project vision from 2026-12-01"
        " 09:00+00:00 to 2026-12-01 12:00+00:00). 1 is free then. It is free for as"
        " long from 2026-12-01 13:00+00:00."
    )


def test_more_than_there_are_can_never_be_reserved(world):
    with pytest.raises(RefusedError, match="There are 4 GPUs in all, and not 5"):
        refuse_conflict(world.view, wanted("09:00", "10:00", 5), UTC)
    with pytest.raises(RefusedError, match="2 GPUs of class t4 in all, and not 3"):
        refuse_conflict(world.view, wanted("09:00", "10:00", 3, gpu_class="t4"), UTC)
    with pytest.raises(RefusedError, match="There is no node three"):
        refuse_conflict(world.view, wanted("09:00", "10:00", None, node="three"), UTC)


def test_a_node_or_a_class_may_not_be_taken_twice(world):
    world.reserve(at("09:00"), at("12:00"), "vision", gpus=None, node="two")
    with pytest.raises(RefusedError, match="node two for project vision"):
        refuse_conflict(world.view, wanted("11:00", "13:00", gpu_class="t4"), UTC)
    with pytest.raises(RefusedError, match="Node two cannot be reserved"):
        refuse_conflict(world.view, wanted("11:00", "13:00", None, node="two"), UTC)
    refuse_conflict(world.view, wanted("11:00", "13:00", 2), UTC)
    refuse_conflict(world.view, wanted("12:00", "13:00", None, node="two"), UTC)


def test_as_many_as_there_are_at_each_moment_fit_however_they_overlap(world):
    for hour in range(0, 20, 2):
        refuse_conflict(
            world.view, wanted(f"{hour:02}:00", f"{hour + 4:02}:00", 2), UTC
        )
        world.reserve(at(f"{hour:02}:00"), at(f"{hour + 4:02}:00"), gpus=2)
    with pytest.raises(RefusedError, match="None is free then"):
        refuse_conflict(world.view, wanted("03:00", "05:00", 1), UTC)


def test_a_node_that_was_removed_cannot_be_reserved(world):
    world.view.node("two").state = REMOVED
    with pytest.raises(RefusedError, match="There is no node two"):
        refuse_conflict(world.view, wanted("09:00", "10:00", None, node="two"), UTC)
