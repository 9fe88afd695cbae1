"""What a standby tells the leader of who opened a WebSocket."""

import pytest

from gpuyard.server.passing_on import who_asks

COOKIE = "gpuyard_1_session=abc"
ORIGIN = "https://gpus.example"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"authorization": "Bearer t", "cookie": COOKIE},
            {"Authorization": "Bearer t"},
        ),
        ({"cookie": COOKIE, "origin": ORIGIN}, {"Cookie": COOKIE, "Origin": ORIGIN}),
        ({"cookie": COOKIE, "gpuyard-as": "ana"}, {"Cookie": COOKIE}),
    ],
)
def test_a_token_or_the_session_of_a_browser(
    given: dict[str, str], told: dict[str, str]
) -> None:
    assert who_asks(_ignoring_case(given)) == told


def _ignoring_case(given: dict[str, str]):
    from starlette.datastructures import Headers

    return Headers(given)
