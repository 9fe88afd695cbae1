"""Trust, quarantine, and the chance of catching a cheater, held against simulations and
against common sense.
"""

import math
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.domain.trust import UNVERIFIED
from gpuyard.verification.records.executors import ExecutorRecord
from gpuyard.verification.settlement import weight
from gpuyard.verification.trust import (
    HALF_LIFE_S,
    LONGEST_QUARANTINE_S,
    PRIOR,
    QUARANTINE_S,
    UNEXPLAINED_BARS,
    UNEXPLAINED_WEIGHS,
    WAITS_KEEP_FREE,
    TrustEstimate,
    brings_quarantine,
    keeps_place_free,
    quarantine_s,
    record_after,
)
from gpuyard.verification.verdict import CheckOutcome

HOUR = 3600.0
DAY = 86400.0
PARTS = st.floats(0, 1)
RECORDS = st.lists(
    st.sampled_from([CheckOutcome.PASSED, CheckOutcome.FAILED]), max_size=200
)


def after(*outcomes: CheckOutcome, every_s: float = HOUR) -> TrustEstimate:
    trust = TrustEstimate()
    for number, outcome in enumerate(outcomes):
        trust = trust.after(outcome, number * every_s)
    return trust


def test_an_unknown_executor_starts_low_and_earns_more_with_each_check() -> None:
    scores = [after(*[CheckOutcome.PASSED] * count).score for count in range(30)]
    assert scores[0] == 0.25
    assert scores == sorted(set(scores)) and scores[-1] > 0.85


def test_one_failure_costs_more_than_several_passes_bring() -> None:
    good = after(*[CheckOutcome.PASSED] * 20)
    failed = good.after(CheckOutcome.FAILED, good.at)
    assert failed.score < after(*[CheckOutcome.PASSED] * 15).score


def test_nobody_saves_up_for_a_fraud() -> None:
    """Ten times the passes hardly soften a failure, and a few failures end what any
    record has earned.
    """
    long = after(*[CheckOutcome.PASSED] * 1000)
    short = after(*[CheckOutcome.PASSED] * 100)
    assert long.score - short.score < 0.02
    assert (
        long.after(CheckOutcome.FAILED, long.at).score
        - short.after(CheckOutcome.FAILED, short.at).score
        < 0.02
    )
    fallen = long
    for _ in range(12):
        fallen = fallen.after(CheckOutcome.FAILED, fallen.at)
    assert fallen.score < TrustEstimate().score + 0.1


def test_a_new_name_gains_little_and_after_any_good_record_loses() -> None:
    assert TrustEstimate().score - after(CheckOutcome.FAILED).score < 0.2
    assert (
        after(*[CheckOutcome.PASSED] * 10, CheckOutcome.FAILED).score
        > TrustEstimate().score
    )


def test_evidence_fades_towards_the_prior_from_both_sides() -> None:
    good = after(*[CheckOutcome.PASSED] * 20)
    bad = after(*[CheckOutcome.FAILED] * 3)
    later = 10 * HALF_LIFE_S
    assert (
        abs(good.faded(later).score - 0.25) < 0.01
        and abs(bad.faded(later).score - 0.25) < 0.01
    )
    half = good.faded(good.at + HALF_LIFE_S)
    assert math.isclose(half.alpha - 1, (good.alpha - 1) / 2) and math.isclose(
        half.beta, 3
    )


def test_excuses_and_what_is_nobodys_fault_say_nothing() -> None:
    trust = after(*[CheckOutcome.PASSED] * 5)
    assert (
        trust.after(CheckOutcome.EXCUSED, trust.at)
        == trust
        == trust.after(CheckOutcome.BLAMELESS, trust.at)
    )


def test_a_clock_that_is_set_back_changes_nothing() -> None:
    trust = after(CheckOutcome.PASSED, CheckOutcome.PASSED, every_s=DAY)
    assert trust.faded(0.0) == trust


@given(RECORDS, st.floats(0, 30 * DAY))
def test_a_score_is_a_chance_and_a_pass_never_lowers_it(
    record: list[CheckOutcome], every_s: float
) -> None:
    trust = after(*record, every_s=every_s)
    assert 0 < trust.score < 1 and trust.alpha + trust.beta <= 64.001
    assert (
        trust.after(CheckOutcome.PASSED, trust.at).score
        > trust.score
        > trust.after(CheckOutcome.FAILED, trust.at).score
    )


def test_quarantine_grows_with_each_failure_to_a_limit() -> None:
    assert [quarantine_s(repeats) / HOUR for repeats in range(4)] == [4, 8, 16, 32]
    assert quarantine_s(50) == quarantine_s(10**6) == 30 * DAY
    with pytest.raises(ValueError, match="repeats is -1; it counts"):
        quarantine_s(-1)


UNEXPLAINED = CheckOutcome.UNEXPLAINED
OTHER_ENGINE = CheckOutcome.OTHER_ENGINE
PASSED = CheckOutcome.PASSED
FAILED = CheckOutcome.FAILED


def recorded(*outcomes: CheckOutcome) -> list[ExecutorRecord]:
    """The record of an executor after each of these checks."""
    found: list[ExecutorRecord] = []
    for number, outcome in enumerate(outcomes, 1):
        row = {"executor": "rented", "gpu_class": "t4", "outcome": outcome.value}
        history = [one.value for one in reversed(outcomes[:number])]
        found.append(record_after(found[-1] if found else None, row, history))
    return found


def test_checks_that_nobody_can_explain_weigh_and_then_bar() -> None:
    found = recorded(*[UNEXPLAINED] * UNEXPLAINED_BARS)
    lost = [record.beta - PRIOR[1] for record in found]
    free = UNEXPLAINED_WEIGHS - 1
    assert lost[:free] == [0.0] * free
    assert lost[free:] == pytest.approx([2.0, 4.0, 6.0], abs=0.01)
    assert [bool(record.quarantined_until) for record in found] == [
        *[False] * (UNEXPLAINED_BARS - 1),
        True,
    ]


@pytest.mark.parametrize(
    ("between", "counts"),
    [
        (PASSED, False),
        (CheckOutcome.BLAMELESS, True),
        (CheckOutcome.EXCUSED, True),
        (CheckOutcome.UNJUDGED, True),
    ],
)
def test_only_an_answer_ends_a_row_of_unexplained_checks(
    between: CheckOutcome, counts: bool
) -> None:
    few = [UNEXPLAINED] * (UNEXPLAINED_BARS - 1)
    (*_, last) = recorded(*few, between, UNEXPLAINED)
    assert bool(last.quarantined_until) is counts


def test_who_says_at_times_that_its_engine_is_another_is_counted_and_barred() -> None:
    """A pass in between forgives nothing: it decides by itself which checks count."""
    for every, barred in ((2, 20), (3, 12), (9, 2)):
        day = [OTHER_ENGINE if n % every == 0 else PASSED for n in range(48)]
        found = recorded(*day)
        repeats = [record.repeats for record in found]
        grows = sum(late > early for early, late in pairwise(repeats))
        assert grows == barred, every
    # Four of a day are what is left to it.
    day = [OTHER_ENGINE if n % 12 == 0 else PASSED for n in range(48)]
    assert not any(record.quarantined_until for record in recorded(*day))


def test_who_mixes_its_excuses_gains_nothing() -> None:
    mixed = [OTHER_ENGINE, UNEXPLAINED] * UNEXPLAINED_BARS
    found = recorded(*mixed[:UNEXPLAINED_BARS])
    assert found[-1].quarantined_until
    assert not found[-2].quarantined_until


def test_who_was_upgraded_once_and_honestly_loses_as_much_as_by_one_failure() -> None:
    """However long nobody notices. Afterwards it passes, and is no cheater."""
    good = [PASSED] * 20
    found = recorded(*good, *[OTHER_ENGINE] * 100)
    last = found[-1]
    assert last.repeats == 1
    until = last.quarantined_until
    assert until and until - time.time() == pytest.approx(QUARANTINE_S, abs=60)
    (*_, failed) = recorded(*good, FAILED)
    assert last.beta == pytest.approx(failed.beta, abs=0.01)
    (*_, fixed) = recorded(*good, *[OTHER_ENGINE] * 100, *[PASSED] * 10)
    assert fixed.repeats == 1
    assert weight(fixed, time.time()) == 1.0


WAITED = CheckOutcome.WAITED


@pytest.mark.parametrize(
    ("outcomes", "keeps"),
    [
        ([WAITED] * WAITS_KEEP_FREE, True),
        ([WAITED] * (WAITS_KEEP_FREE - 1), False),
        ([UNEXPLAINED] * (WAITS_KEEP_FREE - 1) + [WAITED], True),
        ([WAITED, CheckOutcome.BLAMELESS] * WAITS_KEEP_FREE + [WAITED], True),
        ([CheckOutcome.EXCUSED] * WAITS_KEEP_FREE, True),
        ([CheckOutcome.BLAMELESS] * WAITS_KEEP_FREE, False),
        ([WAITED] * WAITS_KEEP_FREE + [UNEXPLAINED], False),
        ([WAITED] * WAITS_KEEP_FREE + [PASSED, WAITED], False),
    ],
)
def test_who_waits_again_and_again_is_checked_next_and_not_blamed(
    outcomes: list[CheckOutcome], keeps: bool
) -> None:
    history = [one.value for one in reversed(outcomes)]
    assert keeps_place_free(outcomes[-1], history) is keeps
    assert not brings_quarantine(WAITED, history)
    (*_, record) = recorded(*[WAITED] * 9)
    assert (record.alpha, record.beta) == PRIOR and not record.quarantined_until


def test_who_fails_every_third_check_stays_in_quarantine() -> None:
    found = recorded(*[PASSED, PASSED, FAILED] * 2)
    until = found[-1].quarantined_until
    assert until and until - time.time() > LONGEST_QUARANTINE_S - HOUR
    (*_, better) = recorded(*[PASSED, PASSED, PASSED, FAILED] * 2)
    until = better.quarantined_until
    assert until and until - time.time() < 3 * QUARANTINE_S, "one in four is less"
    (*_, early) = recorded(FAILED)
    until = early.quarantined_until
    assert until and until - time.time() < 2 * QUARANTINE_S, "one check is no habit"


def test_who_was_never_verified_counts_less_than_who_passed() -> None:
    (unclear,) = recorded(CheckOutcome.UNJUDGED)
    (passed,) = recorded(PASSED)
    (failed,) = recorded(FAILED)
    now = time.time()
    weights = [weight(record, now) for record in (failed, unclear, passed)]
    assert weights == sorted(weights)
    assert weights[1:] == pytest.approx([UNVERIFIED, 1.0], abs=0.001)
