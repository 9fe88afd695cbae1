"""Which tokens must not be replaced, and by whom."""

from typing import Any

import pytest

from gpuyard.controller.user_refusals import refuse_rotation
from gpuyard.domain.errors import ForbiddenError, RefusedError
from gpuyard.domain.users import Role, Token, TokenKind


def token(name: str, **fields: Any) -> Token:
    """A token of ana."""
    return Token(id=name, user="ana", name=name, created_at=0.0, **fields)


@pytest.mark.parametrize(
    ("shown", "old"),
    [
        ({"expires_at": 50.0}, {}),
        ({"expires_at": 50.0}, {"expires_at": 51.0}),
        ({"role": Role.VIEWER}, {}),
        ({"role": Role.VIEWER}, {"role": Role.MEMBER}),
    ],
)
def test_nobody_gets_more_than_is_shown(
    shown: dict[str, Any], old: dict[str, Any]
) -> None:
    with pytest.raises(ForbiddenError, match="Rotate it with itself"):
        refuse_rotation(token("old", **old), token("shown", **shown), 10.0)
    # The other way round, and with itself, it is no gain.
    refuse_rotation(token("old", **shown), token("shown", **old), 10.0)
    refuse_rotation(token("old", **old), token("old", **old), 10.0)
    refuse_rotation(token("old", **old), None, 10.0)


def test_what_has_ended_and_a_browser_are_not_replaced() -> None:
    with pytest.raises(RefusedError, match="has expired, and so would"):
        refuse_rotation(token("old", expires_at=10.0), None, 10.0)
    with pytest.raises(RefusedError, match="sign-in of a browser"):
        refuse_rotation(token("old", kind=TokenKind.SESSION), None, 10.0)
