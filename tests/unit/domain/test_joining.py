"""Codes of invitations, and versions that work together."""

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.joining import code_parts, expiry_s, work_together


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("0.1.0", "0.1.7", True),
        ("0.1.0", "0.2.0", True),
        ("0.3.0", "0.1.9", False),
        ("1.0.0", "0.9.0", False),
        ("1.4.0rc1", "1.5", True),
        ("", "0.1.0", True),
    ],
)
def test_versions_one_apart_work_together(one, other, together):
    assert work_together(one, other) is together
    assert work_together(other, one) is together


@pytest.mark.parametrize("code", ["", "abc", f"{'0' * 64}", f"{'0' * 63}.{'a' * 32}"])
def test_what_is_no_code_is_told_apart(code):
    with pytest.raises(InvalidInputError, match="copy the whole line"):
        code_parts(code)


@pytest.mark.parametrize("text", ["0", "8d", "soon"])
def test_an_invitation_is_good_for_at_most_a_week(text):
    with pytest.raises(InvalidInputError, match="--expires"):
        expiry_s(text)
