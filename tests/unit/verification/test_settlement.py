"""What the instance is told about a place after checks there."""

from typing import Any

import pytest

from gpuyard.domain.trust import Trust
from gpuyard.verification.records.executors import ExecutorRecord
from gpuyard.verification.settlement import CheckResult, place_trust
from gpuyard.verification.trust import LONGEST_KEPT_FREE_S, kept_free_s
from gpuyard.verification.verdict import CheckOutcome

NOW = 1_800_000_000.0
HOUR_S = 3600.0
NEW = Trust(place="local", updated_at=0.0)
HONEST = ExecutorRecord("honest", "t4", 2.0, 3.0, NOW)
SMALLER = ExecutorRecord("smaller", "t4", 1.0, 9.0, NOW, NOW + 4 * HOUR_S, 1)
REPAIR = Trust(
    place="local",
    quarantined_until=NOW + 216 * HOUR_S,
    reason="under repair",
    updated_at=NOW,
)


def passed(executor: str) -> CheckResult:
    outcome = CheckOutcome.PASSED
    return CheckResult(executor, "local", outcome, "", "chk_1", "t4", NOW)


def failed(executor: str) -> CheckResult:
    outcome = CheckOutcome.FAILED
    reason = "comparison: differs"
    return CheckResult(
        executor, "local", outcome, reason, "chk_2", "t4", NOW, bars=True
    )


def told(
    results: list[CheckResult], records: list[ExecutorRecord], before: Trust
) -> dict[str, Any]:
    return place_trust(results, records, before, NOW)


def test_a_place_stands_as_its_worst_executor() -> None:
    found = told([passed("honest"), failed("smaller")], [HONEST, SMALLER], NEW)
    assert found["quarantined_until"] == SMALLER.quarantined_until
    assert found["score"] < told([passed("honest")], [HONEST], NEW)["score"]
    assert found["reason"].endswith("honest: passed; smaller: comparison: differs")


def test_who_passes_ends_no_quarantine_that_somebody_else_began() -> None:
    before = Trust(
        place="local",
        quarantined_until=SMALLER.quarantined_until,
        reason="verification of smaller",
        updated_at=NOW,
    )
    for records in ([HONEST, SMALLER], [HONEST]):  # it may have left the settings
        found = told([passed("honest")], records, before)
        assert found["quarantined_until"] == before.quarantined_until
        assert found["reason"] == before.reason


def test_a_quarantine_that_a_person_ended_does_not_come_back() -> None:
    found = told([passed("honest")], [HONEST, SMALLER], NEW)
    assert found["quarantined_until"] is None
    assert found["reason"] == "verification of honest: passed"


def test_a_quarantine_of_a_person_stays_with_its_reason() -> None:
    found = told([passed("honest")], [HONEST], REPAIR)
    assert found["quarantined_until"] == REPAIR.quarantined_until
    assert found["reason"] == "under repair"


def test_a_failure_makes_no_quarantine_shorter_and_says_why() -> None:
    found = told([failed("smaller")], [HONEST, SMALLER], REPAIR)
    assert found["quarantined_until"] == REPAIR.quarantined_until
    assert found["reason"].startswith("verification of smaller: comparison")


def test_a_quarantine_that_is_over_is_told_no_more() -> None:
    over = Trust(place="local", quarantined_until=NOW - 1, updated_at=NOW - 9)
    found = told([passed("honest")], [HONEST], over)
    assert found["quarantined_until"] is None


def waited(executor: str, until: float) -> CheckResult:
    """A check that waited behind other jobs once too often."""
    words = "waited: other jobs of ours have its place"
    return CheckResult(
        executor,
        "local",
        CheckOutcome.WAITED,
        words,
        "chk_3",
        "t4",
        NOW,
        kept_free_until=until,
    )


def trust_of(record: dict[str, Any]) -> Trust:
    """What the instance has recorded."""
    return Trust(place="local", updated_at=NOW, **record)


def test_a_place_that_is_never_free_for_a_check_is_kept_free_until_it_passes() -> None:
    kept = told([waited("honest", NOW + HOUR_S)], [HONEST], NEW)
    assert kept["quarantined_until"] == NOW + HOUR_S
    assert kept["reason"] == "kept free for the next check of honest"
    assert kept["score"] == told([passed("honest")], [HONEST], NEW)["score"]
    longer = told([waited("honest", NOW + 2 * HOUR_S)], [HONEST], trust_of(kept))
    assert longer["quarantined_until"] == NOW + 2 * HOUR_S
    other = told([passed("other")], [HONEST], trust_of(longer))
    assert other["quarantined_until"] == NOW + 2 * HOUR_S
    free = told([passed("honest")], [HONEST], trust_of(other))
    assert free["quarantined_until"] is None
    barred = told([failed("smaller")], [SMALLER], trust_of(longer))
    assert barred["quarantined_until"] == SMALLER.quarantined_until


def test_to_keep_a_place_free_ends_no_other_quarantine() -> None:
    """Else a pass would end what a failure or a person began."""
    found = told([waited("honest", NOW + 300 * HOUR_S)], [HONEST], REPAIR)
    assert found["quarantined_until"] == REPAIR.quarantined_until
    assert found["reason"] == "under repair"


def test_a_place_is_kept_free_until_a_second_check_could_have_come() -> None:
    assert kept_free_s([1800.0, 0.0]) == 3600.0
    overlapping = [5402.0, 5400.0, 3602.0, 3600.0, 1802.0]
    assert kept_free_s(overlapping) == pytest.approx(3596.0)
    assert kept_free_s([7 * 86400.0, 0.0]) == LONGEST_KEPT_FREE_S == 86400.0
