"""What docs/verification.md says in numbers is what the code does."""

import re
from pathlib import Path

from gpuyard.config.verification import VerificationPolicy
from gpuyard.domain.trust import UNVERIFIED
from gpuyard.verification import (
    attested_chips,
    calibration,
    evidence,
    memory_limits,
    proof_sizes,
    receipts,
    tolerance,
    tolerance_limits,
    trust,
    trusted_executor,
    verdict,
)
from gpuyard.verification.fingerprints import PrintDifference
from gpuyard.verification.proof_sizes import PRODUCT_SIZE, SPEEDS
from gpuyard.verification.solver import memory
from tests.support import detection

PAGE = (Path(__file__).parents[3] / "docs/verification.md").read_text()
TEXT = " ".join(PAGE.split())
BATCHES = (1, 10, 48, 336)


def percent(chance: float, strength: float) -> str:
    """Only who answers nothing rightly is sure to be caught; else a chance of 1 is one
    that a float has rounded.
    """
    return (
        "100 %"
        if strength == 1
        else "> 99.9 %"
        if chance >= 0.9995
        else f"{100 * chance:.1f} %"
    )


def test_the_table_of_chances_is_what_the_formula_gives() -> None:
    rows = re.findall(r"^\| (\d[\d./]*) \| (.+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 8
    for strength, cells in rows:
        over, _, under = strength.partition("/")
        part = float(over) / float(under or 1)
        numbers = [
            f"{detection.expected_batches(part):g}",
            str(detection.batches_for(0.99, part)),
        ]
        assert cells.split(" | ") == [
            *(percent(detection.chance(part, batches), part) for batches in BATCHES),
            *numbers,
        ], strength


def cut_by_chance(answers: int, measured: int) -> int:
    """How many answers may be cut short if no honest one of those measured was."""
    limits = tolerance_limits.limits_from(
        [[PrintDifference(10, 0, 50, 0, 0.0)] * (measured // 5)] * 5
    )
    cut = [PrintDifference(10, 0, 50, 0, 0.0, answers, n) for n in range(answers)]
    return max(n for n, one in enumerate(cut) if tolerance.all_are_right(one, limits))


def test_other_numbers_of_the_page() -> None:
    for words in (
        f"{trust.PRIOR[0]:g}, {trust.PRIOR[1]:g}), a score of {trust.TrustEstimate().score:g}",
        f"a failure {trust.FAILURE:g} to the other",
        (
            f"halved every {trust.HALF_LIFE_S / 86400:g} days and bounded by"
            f" {trust.MOST_EVIDENCE:g}"
        ),
        (
            f"quarantine of {trust.quarantine_s(0) / 3600:g} hours, doubled for each"
            f" repeat up to {trust.LONGEST_QUARANTINE_S / 86400:g} days"
        ),
        f"ones add {trust.UNEXPLAINED:g} to the other side",
        f"({trust.HABIT_MOST} at most, {trust.HABIT_FEWEST} at least)",
        f"of a newcomer counts {UNVERIFIED:g},",
        f"but at least {calibration.LEAST_PREPARE_S:g} s; without a calibration",
        f"the deadline and {verdict.IN_PIECES_S:g} s, because",
        f"at least {calibration.FEWEST_RUNS} solve times × {calibration.LEEWAY}",
        (
            f"at most {receipts.LONGEST_S / 3600:g} hours; clocks may differ by"
            f" {receipts.CLOCKS_S:g} s"
        ),
        f"{evidence.LARGEST >> 20} MiB at most",
        f"its newest {trust.OTHER_ENGINE_OF} checks, a day of checks",
        f"a limit is {tolerance_limits.LEEWAY_ALL} times the worst run",
        f"it is {tolerance_limits.LEEWAY_ONE} times the worst answer",
        f"fewer than {tolerance.FEW_TOKENS} tokens",
        f"Of 240 answers these are {cut_by_chance(240, 1200)} if none of 1200",
        f"rows of {memory.ROW_BYTES >> 10} KiB",
        f"{PRODUCT_SIZE:,} columns",
        f"up to {2**memory.FEWEST_PASSES:,} others",
    ):
        assert words in TEXT, words
    assert (trust.UNEXPLAINED_WEIGHS, trust.UNEXPLAINED_BARS) == (3, 5)
    assert "from the third, each weighs a third" in TEXT
    assert "from the fifth, each brings a quarantine" in TEXT
    assert (tolerance.RAREST_ONE, tolerance.RAREST_ALL) == (1e-6, 1e-5)
    assert "less than once in a million answers, or once in 100,000 checks" in TEXT
    assert (trust.WAITS_KEEP_FREE, trust.KEPT_FREE_PAUSES) == (5, 2)
    assert trust.LONGEST_KEPT_FREE_S == 86400
    assert "from the fifth check in a row that waited, was excused" in TEXT
    assert "for twice the longest pause between the last five checks, and a day" in TEXT
    assert attested_chips.SHOWN_BEFORE_S == 3600 and "in the last hour" in TEXT
    policy = VerificationPolicy()
    assert max(policy.step_limit_s, trusted_executor.LONGEST_TASK_S) == 1800
    assert "longest tasks that may be ahead of it (an hour by default)" in TEXT
    assert calibration.PREPARE_LEEWAY == 3
    assert "three times the longest that the trusted executor needed" in TEXT
    assert (
        memory.FEWEST_PASSES == 16
        and "sixteen passes" in TEXT
        and proof_sizes.MEMORY_S == 3
    )


def test_how_much_memory_may_be_missing_is_what_the_formula_gives() -> None:
    assert memory_limits.SLOWEST == calibration.LEEWAY * 1.3
    for row in memory_limits.table():
        assert f"{row}\n" in PAGE, row
    parts = [memory_limits.part_elsewhere(name) for name in SPEEDS]
    assert f"{100 * min(parts):.0f} to {max(parts):.0%}".replace("%", " %") in TEXT
