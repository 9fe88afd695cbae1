"""What the exit code of a run says."""

import pytest

from gpuyard.verification.run_report import exit_code_of
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
