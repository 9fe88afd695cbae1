"""When models are asked for: what is learned of it day by day."""

from hypothesis import given
from hypothesis import strategies as st

from gpuyard.residency.demand_forecast import EXPECTED, DemandForecast
from gpuyard.residency.simulation import play
from gpuyard.residency.workload import Arrival, Model, Script, Workload

DAY = 86400.0
HOUR = 3600.0


def asked(*days: int, hour: float = 9.1) -> DemandForecast:
    forecast = DemandForecast()
    for day in days:
        forecast.note_request("m", day * DAY + hour * HOUR)
    return forecast


def test_a_model_is_expected_from_the_third_day_on():
    assert asked(0, 1).next_demand("m", 2 * DAY) is None
    assert asked(0, 1, 2).next_demand("m", 3 * DAY) == (
        3 * DAY + 9 * HOUR,
        3 * DAY + 9.25 * HOUR,
    )


def test_what_has_begun_is_expected_until_it_ends():
    now = 3 * DAY + 9.2 * HOUR
    assert asked(0, 1, 2).next_demand("m", now) == (
        3 * DAY + 9 * HOUR,
        3 * DAY + 9.25 * HOUR,
    )
    assert asked(0, 1, 2, 3).next_demand("m", 3 * DAY + 9.3 * HOUR) == (
        4 * DAY + 9 * HOUR,
        4 * DAY + 9.25 * HOUR,
    )


def test_slots_in_a_row_are_one_time_also_over_midnight():
    forecast = asked(0, 1, 2, hour=23.9)
    for day in (1, 2, 3):
        forecast.note_request("m", day * DAY + 60)
    assert forecast.next_demand("m", 3 * DAY + HOUR) == (
        3 * DAY + 23.75 * HOUR,
        4 * DAY + 0.25 * HOUR,
    )


def test_it_is_forgotten_over_days_without_a_request():
    forecast = asked(0, 1, 2, 3, 4)
    assert forecast.next_demand("m", 5 * DAY) is not None
    assert forecast.next_demand("m", 12 * DAY) is None


def test_working_days_are_still_known_on_monday():
    forecast = asked(*[week * 7 + day for week in range(3) for day in range(5)])
    assert forecast.next_demand("m", 21 * DAY) is not None


def test_one_request_a_slot_and_day_teaches():
    forecast = DemandForecast()
    assert forecast.note_request("m", 10.0) is not None
    assert forecast.note_request("m", 20.0) is None
    assert forecast.note_request("m", 1000.0) is not None


@given(st.lists(st.integers(0, 60), max_size=40))
def test_a_share_is_a_share_and_what_is_kept_gives_the_same(days: list[int]):
    forecast = DemandForecast()
    again = DemandForecast()
    kept = [
        demand
        for day in sorted(days)
        if (demand := forecast.note_request("m", day * DAY))
    ][-1:]
    for demand in kept:
        assert 0 < demand.share < 1
        again.restore(demand)
    for day in range(60, 70):
        there = forecast.next_demand("m", day * DAY)
        assert again.next_demand("m", day * DAY) == there
        assert (there is not None) == any(
            h.share_on(day) >= EXPECTED or h.share_on(day + 1) >= EXPECTED for h in kept
        )


def daily(*more: Arrival) -> Workload:
    """A request each morning, and a script each evening that takes the GPU."""
    came = [Arrival(day * DAY + 9.1 * HOUR, "m", 10.0) for day in range(8)]
    came += [Arrival(day * DAY + 20 * HOUR, "s", 100.0) for day in range(8)]
    model = Model(boot_s=120, wake_s=None, unload_s=5, memory_gb=20)
    script = Script(5, 1, 8)
    return Workload(
        {"g": 24.0},
        {"m": model},
        {"s": script},
        sorted([*came, *more], key=lambda a: a.at),
    )


def test_a_model_is_there_before_it_is_asked_for():
    outcome = play(daily(), "cost")
    assert outcome.unfinished == 0
    assert outcome.llm[:3] == [130, 130, 130]
    assert outcome.llm[3:] == [10] * 5, "from the fourth morning on it waits"


def test_nobody_who_waits_is_kept_from_a_gpu_by_foresight():
    night = [
        Arrival(day * DAY + 8 * HOUR + 60 * number, "s", 600.0)
        for day in (5, 6)
        for number in range(20)
    ]
    with_it = play(daily(*night), "cost")
    assert with_it.unfinished == 0
    assert max(with_it.script[:3]) < 1000
    lru = play(daily(*night), "lru")
    assert sum(with_it.script) <= 1.05 * sum(lru.script)
