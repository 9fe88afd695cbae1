"""Cookies that hold a token: who opens them, and until when."""

from collections.abc import Mapping
from typing import Any

import pytest

from gpuyard.server.sign_in.ended_cookies import EndedCookies
from gpuyard.server.sign_in.session_secret import SessionSecret
from gpuyard.server.sign_in.token_sessions import LINK_LASTS_S, TokenSessions


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Notes:
    """The notes of a ledger."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Any]] = {}

    def note(self, name: str) -> Mapping[str, Any]:
        return self.kept.get(name, {})

    async def keep(self, name: str, body: Mapping[str, Any]) -> None:
        self.kept[name] = dict(body)


def sessions_of(
    lasts_s: float = 60,
    clock: Clock | None = None,
    notes: Notes | None = None,
) -> TokenSessions:
    """Those of a server that has just started with these notes."""
    clock = clock or Clock()
    notes = notes or Notes()
    ended = EndedCookies(notes.note, notes.keep, clock)
    secret = SessionSecret(notes.note, notes.keep)
    return TokenSessions(secret, lasts_s, ended, clock)


@pytest.mark.anyio
async def test_a_cookie_opens_until_its_time_is_over() -> None:
    clock = Clock()
    sessions = sessions_of(clock=clock)
    cookie = await sessions.seal("a-token", "ana")
    assert "a-token" not in cookie
    clock.now += 59
    assert sessions.open(cookie) == "a-token"
    clock.now += 1
    assert sessions.open(cookie) is None


@pytest.mark.anyio
async def test_only_servers_of_the_instance_open_it() -> None:
    notes = Notes()
    waiting = sessions_of(notes=notes)
    cookie = await sessions_of(notes=notes).seal("a-token", "ana")
    for one in (waiting, sessions_of(notes=notes)):
        assert one.open(cookie) == "a-token"
    assert sessions_of().open(cookie) is None
    another = sessions_of()
    await another.seal("a-token", "ana")
    assert another.open(cookie) is None


@pytest.mark.anyio
async def test_an_altered_cookie_opens_nothing() -> None:
    sessions = sessions_of()
    cookie = await sessions.seal("a-token", "ana")
    for place in range(len("token."), len(cookie)):
        other = "A" if cookie[place] != "A" else "B"
        altered = cookie[:place] + other + cookie[place + 1 :]
        assert sessions.open(altered) is None
    for nonsense in ("", "token.", "token.!", "token.AAAA", "gpuyard_abc"):
        assert sessions.open(nonsense) is None


@pytest.mark.anyio
async def test_a_browser_that_was_signed_out_stays_so() -> None:
    clock = Clock()
    notes = Notes()
    sessions = sessions_of(clock=clock, notes=notes)
    one = await sessions.seal("a-token", "ana")
    other = await sessions.seal("a-token", "ana")
    await sessions.end(one)
    for server in (sessions, sessions_of(clock=clock, notes=notes)):
        assert server.open(one) is None
        assert server.open(other) == "a-token"
    clock.now += 60
    await sessions.end(await sessions.seal("a-token", "ana"))
    kept = notes.kept["ended_cookies"]
    assert len(kept) == 1


@pytest.mark.anyio
async def test_what_has_ended_opens_nothing_in_another_writing_either() -> None:
    sessions = sessions_of()
    cookie = await sessions.seal("a-token", "ana")
    code = await sessions.code("a-token", "ana")
    await sessions.end(cookie)
    await sessions.redeem(code)
    for ended in (cookie, code):
        # Base64 has bits that stand for nothing, and readers skip strange characters.
        endings = [ended[:-1] + letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"]
        for other in (*endings, f"{ended}=", f"{ended}!", ended[:9] + " " + ended[9:]):
            assert sessions.open(other) is None
            assert await sessions.redeem(other) is None


@pytest.mark.anyio
async def test_what_was_never_a_cookie_takes_no_memory() -> None:
    notes = Notes()
    sessions = sessions_of(notes=notes)
    for number in range(10):
        await sessions.end(f"token.{number}")
    assert not notes.kept


@pytest.mark.anyio
async def test_a_link_is_good_once_and_is_no_cookie() -> None:
    clock = Clock()
    sessions = sessions_of(lasts_s=600, clock=clock)
    code = await sessions.code("a-token", "ana")
    assert sessions.open(code) is None
    assert await sessions.redeem(await sessions.seal("a-token", "ana")) is None
    assert await sessions.redeem(code) == "a-token"
    assert await sessions.redeem(code) is None
    late = await sessions.code("a-token", "ana")
    clock.now += LINK_LASTS_S
    assert await sessions.redeem(late) is None


@pytest.mark.anyio
async def test_nobody_makes_the_server_forget_what_others_have_ended() -> None:
    clock = Clock()
    notes = Notes()
    sessions = sessions_of(lasts_s=600, clock=clock, notes=notes)
    cookie = await sessions.seal("a-token", "ana")
    owners = await sessions.seal("the-token", None)
    await sessions.end(cookie)
    code = await sessions.code("b-token", "ben")
    clock.now += 1
    for _ in range(200):
        await sessions.end(await sessions.seal("b-token", "ben"))
    assert await sessions.redeem(code) == "b-token"
    clock.now += 1
    last = await sessions.seal("b-token", "ben")
    for server in (sessions, sessions_of(clock=clock, notes=notes)):
        assert server.open(cookie) is None
        assert await server.redeem(code) is None
        assert server.open(owners) == "the-token"
        assert server.open(last) == "b-token"
    assert len(notes.kept["ended_cookies"]) < 70
