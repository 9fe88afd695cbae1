"""The health of a provider, against what its table of states says, whatever is seen in
whatever order.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gpuyard.domain.events import EventKind
from gpuyard.domain.health import DAY_S, FAILURES, HOUR_S, Health, HealthState

T0 = 1_700_000_000.0


def down(at: float = T0) -> Health:
    health = Health(at)
    for _ in range(FAILURES):
        health.checked(at, "no answer")
    return health


def test_it_goes_down_at_the_third_failure_in_a_row_and_says_so_once():
    health = Health(T0)
    assert [health.checked(T0 + n, "no answer") for n in range(4)] == [
        None,
        None,
        EventKind.PROVIDER_DOWN,
        None,
    ]
    assert health.data("slurm") == {
        "provider": "slurm",
        "state": "down",
        "problem": "no answer",
        "since": T0 + 2,
    }


def test_one_good_check_between_them_starts_the_count_anew():
    health = Health(T0)
    for problem in ("x", "x", "", "x", "x"):
        assert health.checked(T0, problem) is None
    assert (health.state, health.failures) == (HealthState.DEGRADED, 2)


def test_it_comes_back_with_one_good_check():
    health = down()
    assert health.checked(T0 + 30) is EventKind.PROVIDER_UP
    assert (health.state, health.problem, health.since) == (
        HealthState.HEALTHY,
        "",
        T0 + 30,
    )


@pytest.mark.parametrize(("within_s", "rate"), [(HOUR_S, 0.5), (DAY_S, 0.75)])
def test_success_rates_over_an_hour_and_a_day(within_s: float, rate: float):
    health = Health(T0)
    for ago_s, well in (
        (2 * DAY_S, False),
        (3 * HOUR_S, True),
        (3 * HOUR_S, True),
        (60, True),
        (30, False),
    ):
        health.attempted(T0 - ago_s, well=well)
    assert health.success_rate(T0, within_s) == rate


def test_with_no_attempt_there_is_no_rate():
    assert Health(T0).success_rate(T0) is None


@given(st.lists(st.tuples(st.floats(-DAY_S, DAY_S), st.booleans()), max_size=200))
def test_a_rate_is_a_share_and_what_is_kept_is_bounded(
    attempts: list[tuple[float, bool]],
):
    health = Health(T0)
    now = T0
    for step, well in attempts:
        now += step
        health.attempted(now, well=well)
        assert 0 <= (health.success_rate(now, DAY_S) or 0) <= 1
    assert len(health._intervals) <= DAY_S / 300 + 2


class Checks(RuleBasedStateMachine):
    """Checks and time, beside the simplest model of what they should lead to."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.since = T0
        self.health = Health(T0)
        self.in_a_row = 0
        self.is_down = False

    @rule(seconds=st.sampled_from([0.1, 1.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def a_good_check(self) -> None:
        told = self.health.checked(self.now)
        assert told is (EventKind.PROVIDER_UP if self.is_down else None)
        if self.in_a_row:
            self.since = self.now
        self.in_a_row = 0
        self.is_down = False

    @rule(problem=st.sampled_from(["no answer", "refused"]))
    def a_failed_check(self, problem: str) -> None:
        told = self.health.checked(self.now, problem)
        self.in_a_row += 1
        goes_down = not self.is_down and self.in_a_row == FAILURES
        assert told is (EventKind.PROVIDER_DOWN if goes_down else None)
        if self.in_a_row == 1 or goes_down:
            self.since = self.now
        self.is_down |= goes_down
        assert self.health.problem == problem

    @invariant()
    def it_is_what_the_model_says(self) -> None:
        expected = (
            HealthState.DOWN
            if self.is_down
            else HealthState.DEGRADED
            if self.in_a_row
            else HealthState.HEALTHY
        )
        assert (self.health.state, self.health.failures, self.health.since) == (
            expected,
            self.in_a_row,
            self.since,
        )
        assert bool(self.health.problem) == bool(self.in_a_row)


TestChecks = Checks.TestCase
