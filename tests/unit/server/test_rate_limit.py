"""How many requests a user may send."""

import pytest

from gpuyard.controller.users import OWNER, Identity
from gpuyard.domain.errors import RateLimitedError
from gpuyard.domain.users import Role
from gpuyard.server.rate_limit import BURST_S, RateLimit

ANA = Identity("ana", Role.MEMBER)
BEN = Identity("ben", Role.MEMBER)
BOSS = Identity("boss", Role.ADMINISTRATOR)


class Clock:
    """A clock that somebody sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def taken(limit: RateLimit, identity: Identity, most: int = 1000) -> int:
    """How many requests pass at once."""
    for number in range(most):
        try:
            limit.take(identity)
        except RateLimitedError:
            return number
    return most


def test_each_user_has_a_bucket_that_fills_again() -> None:
    clock = Clock()
    limit = RateLimit(5, clock)
    whole = int(5 * BURST_S)
    assert taken(limit, ANA) == whole
    assert taken(limit, BEN) == whole
    clock.now += RateLimitedError.retry_after
    assert taken(limit, ANA) == 5
    clock.now += 1000
    assert taken(limit, ANA) == whole


def test_who_acts_for_others_uses_up_its_own() -> None:
    limit = RateLimit(1, Clock())
    for_ana = Identity("ana", Role.MEMBER, sender=BOSS)
    assert taken(limit, for_ana) == BURST_S
    with pytest.raises(RateLimitedError, match="boss sends more than 1 requests"):
        limit.take(BOSS)
    limit.take(ANA)


def test_the_owner_has_no_limit_and_nobody_without_the_setting() -> None:
    assert taken(RateLimit(1, Clock()), OWNER) == 1000
    assert taken(RateLimit(0, Clock()), ANA) == 1000
