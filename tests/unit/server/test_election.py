"""Whose URLs mean the same on another host, as the list of servers tells."""

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.ledger.lease import Member
from gpuyard.server.election import refuse_loopback

HERE = "boot-1:4026531840"
THERE = "boot-2:4026531840"


def member(url: str, loopback: str = HERE) -> Member:
    return Member("server_1", url, "", loopback)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8400",
        "http://127.9.9.9",
        "http://localhost:1",
        "https://[::1]:8400",
        "http://0.0.0.0:8400",
    ],
)
def test_an_address_that_others_read_as_their_own_is_refused(url: str) -> None:
    alone = [member(url), member("http://127.0.0.1:1"), member("http://a", "")]
    refuse_loopback(member(url), alone)
    with pytest.raises(InvalidInputError, match=r"server\.url: is .* another host"):
        refuse_loopback(member(url), [*alone, member("http://b.example", THERE)])


def test_an_address_that_all_reach_is_not() -> None:
    others = [member("http://b.example", THERE)]
    refuse_loopback(member("http://a.example"), others)
    assert member("http://a.example").reaches(others[0])
    assert not member("http://a.example").reaches(member("http://localhost", THERE))
