"""What the exit code of a run says."""

from types import SimpleNamespace
from typing import cast

import pytest

from gpuyard.verification.check import Check
from gpuyard.verification.commands import print_status
from gpuyard.verification.run_report import exit_code_of
from gpuyard.verification.verdict import CheckOutcome
from gpuyard.verification.verify import VerificationReport


@pytest.mark.parametrize(
    ("left_out", "changed", "allow_unjudged", "code"),
    [
        ([], [], False, 0),
        (["rented"], [], False, 1),
        (["rented"], [], True, 0),
        # Nobody can be compared: a person has to do something.
        (["rented"], ["t4"], False, 4),
        (["rented"], ["t4"], True, 4),
    ],
)
def test_a_class_that_was_not_verified_is_told_whatever_came_of_the_others(
    left_out: list[str], changed: list[str], allow_unjudged: bool, code: int
) -> None:
    report = VerificationReport([], {}, left_out, [], changed)
    assert exit_code_of(report, allow_unjudged=allow_unjudged) == code


@pytest.mark.parametrize("outcome", CheckOutcome)
def test_only_a_pass_is_told_by_the_exit_code_0(outcome: CheckOutcome) -> None:
    """Also an excuse: who was at work for others was not judged."""
    executor = SimpleNamespace(name="rented")
    check = cast(Check, SimpleNamespace(executor=executor, outcome=outcome))
    report = VerificationReport([check], {}, [], [], [])
    strict = exit_code_of(report, allow_unjudged=False)
    assert (strict == 0) is (outcome is CheckOutcome.PASSED)
    lenient = exit_code_of(report, allow_unjudged=True)
    assert (lenient == 0) is (outcome is not CheckOutcome.FAILED)


def test_status_says_what_keeps_a_class_from_being_judged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = dict.fromkeys(("class", "executors", "series", "used", "ready"), 1)
    row |= dict.fromkeys(("waiting", "deadline_s"), 1)
    troubles = {"changed": "it has changed", "silent": "it does not answer"}
    print_status([{**row, **troubles}], [])
    shown = capsys.readouterr().out
    assert all(words in shown for words in troubles.values())
