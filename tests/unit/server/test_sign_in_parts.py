"""Parts of sign-in: names and roles from claims, commands that wait, cookies."""

from typing import Any

import httpx
import pytest

from gpuyard.config.dialling import Tls
from gpuyard.config.sign_in import OpenIdSettings
from gpuyard.domain.errors import (
    ForbiddenError,
    InvalidInputError,
    NotFoundError,
    TooManyRequestsError,
    UnauthorizedError,
)
from gpuyard.domain.users import Role
from gpuyard.server.member_client import member_client
from gpuyard.server.sign_in import devices
from gpuyard.server.sign_in.begun import LASTS_S, Begun, Seal, checked_next
from gpuyard.server.sign_in.claims import person_of
from gpuyard.server.sign_in.cookies import Cookies
from gpuyard.server.sign_in.devices import DeviceError, Devices

CALLER = ("192.0.2.1", None)


def settings(**more: Any) -> OpenIdSettings:
    return OpenIdSettings(issuer="https://id.example.org", client_id="us", **more)


@pytest.mark.parametrize(
    ("claims", "more", "name"),
    [
        ({"preferred_username": "ana", "email": "x@y.org"}, {}, "ana"),
        ({"preferred_username": "Ana@Lab.org"}, {}, "ana"),
        ({"email": "ben@lab.org", "email_verified": True}, {}, "ben"),
        ({"nick": "cleo", "preferred_username": "x"}, {"name_claim": "nick"}, "cleo"),
        (
            {"preferred_username": "dora@lab.org"},
            {"email_domains": ("lab.org",)},
            "dora",
        ),
    ],
)
def test_the_name_is_that_of_the_claim(
    claims: dict[str, Any], more: dict[str, Any], name: str
) -> None:
    assert person_of(settings(**more), {"sub": "s", **claims}).name == name


@pytest.mark.parametrize(
    ("claims", "email"),
    [
        ({"email": "Ana@lab.org", "email_verified": True}, "Ana@lab.org"),
        ({"email": "ana@lab.org"}, None),
        ({"email": "ana@lab.org", "email_verified": "true"}, None),
        ({"email": "ana@lab.org\nBcc: x@y.org", "email_verified": True}, None),
        ({"email": ["ana@lab.org"], "email_verified": True}, None),
    ],
)
def test_only_a_verified_address_is_known(
    claims: dict[str, Any], email: str | None
) -> None:
    given = {"sub": "s", "preferred_username": "ana", **claims}
    assert person_of(settings(), given).email == email


@pytest.mark.parametrize(
    ("claims", "more", "fault"),
    [
        ({}, {}, "does not say who you are"),
        ({"email": "ben@lab.org"}, {}, "not verified"),
        ({"email": "ben@lab.org", "email_verified": "true"}, {}, "not verified"),
        ({"preferred_username": ["ana"]}, {}, "is no text"),
        (
            {"preferred_username": "ana@evil.example"},
            {"email_domains": ("lab.org",)},
            "here people of lab.org",
        ),
        ({"preferred_username": "ana"}, {"email_domains": ("lab.org",)}, "here people"),
    ],
)
def test_a_claim_that_names_nobody_is_told(
    claims: dict[str, Any], more: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ForbiddenError, match=fault):
        person_of(settings(**more), {"sub": "s", **claims})


@pytest.mark.parametrize(
    ("groups", "role"),
    [
        (["users", "admins"], Role.ADMINISTRATOR),
        ("users", Role.MEMBER),
        (["others"], None),
        ([["admins"]], None),
        ({"admins": True}, None),
        (None, None),
    ],
)
def test_the_highest_role_of_the_groups_counts(groups: Any, role: Role | None) -> None:
    roles = {"users": Role.MEMBER, "admins": Role.ADMINISTRATOR}
    claims = {"sub": "s", "preferred_username": "ana", "groups": groups}
    assert person_of(settings(roles=roles), claims).role is role


class Clock:
    """A time that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def polled(waiting: Devices, device_code: str) -> str:
    with pytest.raises(DeviceError) as caught:
        waiting.redeem(device_code)
    return caught.value.code


def test_a_command_gets_its_user_once() -> None:
    clock = Clock()
    waiting = Devices(clock)
    codes = waiting.ask("laptop", "192.0.2.1", CALLER)
    assert polled(waiting, codes.device_code) == "authorization_pending"
    assert polled(waiting, codes.device_code) == "slow_down"
    # However it is typed; and only the code itself counts.
    typed = codes.user_code.lower().replace("-", " ")
    assert waiting.decide(typed, "ana", allow=True).host == "laptop"
    with pytest.raises(NotFoundError, match="used already"):
        waiting.decide(codes.user_code, "ben", allow=True)
    clock.now += 10
    assert waiting.redeem(codes.device_code).user == "ana"
    assert polled(waiting, codes.device_code) == "expired_token"
    assert polled(waiting, codes.user_code) == "expired_token"


def test_a_code_ends_with_its_time() -> None:
    clock = Clock()
    waiting = Devices(clock)
    codes = waiting.ask("", "192.0.2.1", CALLER)
    clock.now += devices.LASTS_S
    with pytest.raises(NotFoundError):
        waiting.look(codes.user_code, "ana")
    assert polled(waiting, codes.device_code) == "expired_token"


def test_codes_are_not_found_by_trying() -> None:
    clock = Clock()
    waiting = Devices(clock)
    codes = waiting.ask("", "192.0.2.1", CALLER)
    for _ in range(devices.MOST_WRONG):
        with pytest.raises(NotFoundError):
            waiting.look("BBBB-BBBB", "eve")
    with pytest.raises(TooManyRequestsError):
        waiting.look(codes.user_code, "eve")
    # It does not concern others; but one code is not shown without end.
    for _ in range(devices.MOST_LOOKS + 1):
        waiting.look(codes.user_code, "ana")
    with pytest.raises(NotFoundError):
        waiting.look(codes.user_code, "ana")


def test_nobody_fills_the_memory_with_codes() -> None:
    clock = Clock()
    waiting = Devices(clock)
    for _ in range(devices.MOST_OF_ADDRESS):
        waiting.ask("", "192.0.2.1", CALLER)
    with pytest.raises(TooManyRequestsError):
        waiting.ask("", "192.0.2.1", CALLER)
    waiting.ask("", "192.0.2.2", ("192.0.2.2", None))
    clock.now += devices.LASTS_S
    waiting.ask("", "192.0.2.1", CALLER)


def test_what_was_begun_is_opened_once_in_time_and_by_us() -> None:
    clock = Clock()
    seal = Seal("secret", clock)
    begun = Begun.new()
    cookie = seal.close(begun, "/auth/device")
    assert begun.verifier not in cookie
    for wrong in ("", "x", cookie[:-4], Seal("other").close(begun, "/")):
        with pytest.raises(UnauthorizedError, match="has not begun"):
            seal.open(wrong, begun.state)
    with pytest.raises(UnauthorizedError, match="has not begun"):
        seal.open(cookie, "another")
    assert seal.open(cookie, begun.state) == (begun, "/auth/device")
    with pytest.raises(UnauthorizedError, match="used before"):
        seal.open(cookie, begun.state)
    late = Begun.new()
    cookie = seal.close(late, "/")
    clock.now += LASTS_S
    with pytest.raises(UnauthorizedError, match="took too long"):
        seal.open(cookie, late.state)


def test_only_paths_of_ours_are_next() -> None:
    assert checked_next(None) == "/auth"
    assert checked_next("/auth/device?user_code=A") == "/auth/device?user_code=A"
    with pytest.raises(InvalidInputError):
        checked_next("/\tevil")


def test_cookies_of_servers_with_tls_are_of_this_host_alone() -> None:
    with_tls = Cookies("https://gpu.example.org")
    header = with_tls.header(with_tls.session, "value", 60)
    assert header == (
        "__Host-gpuyard_session=value; Path=/; Max-Age=60; HttpOnly; SameSite=Lax;"
        " Secure"
    )
    without = Cookies("http://127.0.0.1:8400")
    assert without.session == "gpuyard_8400_session"
    for headers in ({}, {b"origin": b"http://gpu.example.org"}, {b"origin": b"null"}):
        with pytest.raises(ForbiddenError):
            with_tls.check_own_page("POST", headers)
    with_tls.check_own_page("POST", {b"origin": b"https://gpu.example.org"})
    with_tls.check_own_page("GET", {})


def test_what_a_standby_passes_on_leaves_no_cookie_behind() -> None:
    client = member_client("http://127.0.0.1:8400", "token", Tls(None, None))
    given = {"Set-Cookie": "gpuyard_8400_session=of-somebody; Path=/"}
    request = httpx.Request("GET", "http://127.0.0.1:8400/auth/callback")
    client.cookies.extract_cookies(httpx.Response(303, headers=given, request=request))
    assert not client.cookies
