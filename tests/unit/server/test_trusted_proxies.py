"""Whose request it is that comes through proxies."""

from typing import Any

import pytest

from gpuyard.server.callers import caller_of
from gpuyard.server.trusted_proxies import TrustedProxies

PROXIES = ("10.0.0.0/8", "192.0.2.1", "fd00::/8")


def scope(peer: str, *forwarded: str) -> dict[str, Any]:
    headers = [(b"x-forwarded-for", text.encode()) for text in forwarded]
    return {"client": (peer, 50_000), "server": ("10.9.9.9", 80), "headers": headers}


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("10.0.0.5", ("203.0.113.7",), "203.0.113.7"),
        ("10.0.0.5", ("198.51.100.1, 203.0.113.7",), "203.0.113.7"),
        ("10.0.0.5", ("198.51.100.1", "203.0.113.7, 192.0.2.1"), "203.0.113.7"),
        ("::ffff:10.0.0.5", ("2001:db8::1",), "2001:db8::1"),
        ("10.0.0.5", ("1.1.1.1," * 400 + "203.0.113.7",), "203.0.113.7"),
    ],
)
def test_a_trusted_proxy_says_who_is_behind_it(
    peer: str, forwarded: tuple[str, ...], address: str
) -> None:
    asked = scope(peer, *forwarded)
    caller = TrustedProxies(PROXIES).caller_of(asked)
    assert (caller.address, caller.uid, caller.is_forwarded) == (address, None, True)
    assert caller_of(asked) is caller


@pytest.mark.parametrize(
    ("peer", "forwarded"),
    [
        ("203.0.113.9", ("198.51.100.1",)),
        ("10.0.0.5", ()),
        ("10.0.0.5", ("unknown",)),
        ("10.0.0.5", ("198.51.100.1, unknown",)),
        ("10.0.0.5", ("10.0.0.6, 10.0.0.7",)),
        ("10.0.0.5", ("1.1.1.1," * 400,)),
    ],
)
def test_anybody_else_speaks_for_nobody(peer: str, forwarded: tuple[str, ...]) -> None:
    asked = scope(peer, *forwarded)
    caller = TrustedProxies(PROXIES).caller_of(asked)
    assert (caller.address, caller.is_forwarded) == (peer, False)


def test_without_settings_no_proxy_is_trusted() -> None:
    caller = TrustedProxies(()).caller_of(scope("10.0.0.5", "203.0.113.7"))
    assert caller.address == "10.0.0.5"
