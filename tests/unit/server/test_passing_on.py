"""What a standby tells the leader of who opened a WebSocket."""

import pytest
from starlette.datastructures import Headers

from gpuyard.server.passing_on import who_asks
from gpuyard.server.sign_in.cookies import Cookies
from gpuyard.server.sign_in.forwarded import ForwardedBrowser

OURS = "http://127.0.0.1:1"
LEADERS = "http://127.0.0.1:2"
BROWSER = ForwardedBrowser(Cookies(OURS), Cookies(LEADERS))
COOKIE = "gpuyard_1_session=abc"
THEIR_COOKIE = "gpuyard_2_session=abc"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"authorization": "Bearer t", "cookie": COOKIE},
            {"Authorization": "Bearer t"},
        ),
        (
            {"cookie": COOKIE, "origin": OURS},
            {"Cookie": THEIR_COOKIE, "Origin": LEADERS},
        ),
        (
            {"cookie": COOKIE, "origin": "https://evil.example"},
            {"Cookie": THEIR_COOKIE, "Origin": "https://evil.example"},
        ),
        ({"cookie": COOKIE, "gpuyard-as": "ana"}, {"Cookie": THEIR_COOKIE}),
    ],
)
def test_a_token_or_the_session_of_a_browser_as_the_leader_calls_it(
    given: dict[str, str], told: dict[str, str]
) -> None:
    assert who_asks(Headers(given), BROWSER) == told
