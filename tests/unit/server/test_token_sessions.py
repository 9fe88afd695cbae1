"""Cookies that hold a token: who opens them, and until when."""

from gpuyard.server.sign_in.token_sessions import LINK_LASTS_S, TokenSessions


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_cookie_opens_until_its_time_is_over() -> None:
    clock = Clock()
    sessions = TokenSessions("secret", 60, clock)
    cookie = sessions.seal("a-token")
    assert "a-token" not in cookie
    clock.now += 59
    assert sessions.open(cookie) == "a-token"
    clock.now += 1
    assert sessions.open(cookie) is None


def test_only_servers_of_the_instance_open_it() -> None:
    cookie = TokenSessions("secret", 60).seal("a-token")
    assert TokenSessions("secret", 60).open(cookie) == "a-token"
    assert TokenSessions("another", 60).open(cookie) is None


def test_an_altered_cookie_opens_nothing() -> None:
    sessions = TokenSessions("secret", 60)
    cookie = sessions.seal("a-token")
    for place in range(len("token."), len(cookie)):
        other = "A" if cookie[place] != "A" else "B"
        altered = cookie[:place] + other + cookie[place + 1 :]
        assert sessions.open(altered) is None
    for nonsense in ("", "token.", "token.!", "token.AAAA", "gpuyard_abc"):
        assert sessions.open(nonsense) is None


def test_a_browser_that_was_signed_out_stays_so() -> None:
    clock = Clock()
    sessions = TokenSessions("secret", 60, clock)
    one = sessions.seal("a-token")
    other = sessions.seal("a-token")
    sessions.end(one)
    assert sessions.open(one) is None
    assert sessions.open(other) == "a-token"


def test_what_has_ended_opens_nothing_in_another_writing_either() -> None:
    sessions = TokenSessions("secret", 60)
    cookie = sessions.seal("a-token")
    code = sessions.code("a-token")
    sessions.end(cookie)
    sessions.redeem(code)
    for ended, opens in ((cookie, sessions.open), (code, sessions.redeem)):
        # Base64 has bits that stand for nothing, and readers skip strange characters.
        endings = [ended[:-1] + letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"]
        for other in (*endings, f"{ended}=", f"{ended}!", ended[:9] + " " + ended[9:]):
            assert opens(other) is None


def test_what_was_never_a_cookie_takes_no_memory() -> None:
    sessions = TokenSessions("secret", 60)
    for number in range(10):
        sessions.end(f"token.{number}")
    assert not sessions._ended


def test_a_link_is_good_once_and_is_no_cookie() -> None:
    clock = Clock()
    sessions = TokenSessions("secret", 600, clock)
    code = sessions.code("a-token")
    assert sessions.open(code) is None
    assert sessions.redeem(sessions.seal("a-token")) is None
    assert sessions.redeem(code) == "a-token"
    assert sessions.redeem(code) is None
    late = sessions.code("a-token")
    clock.now += LINK_LASTS_S
    assert sessions.redeem(late) is None
