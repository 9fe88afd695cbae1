"""Rate limits, on a clock that only these tests move."""

import asyncio
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpuyard.studies.rate_limiter import WINDOW_S, RateLimiter, RequestClock


class StoryClock(RequestClock):
    """Time passes only while somebody waits."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds


def entries(
    sizes: list[int], requests: int | None, tokens: int | None
) -> list[tuple[float, int]]:
    clock = StoryClock()
    pace = RateLimiter(requests, tokens, clock)

    async def play() -> list[tuple[float, int]]:
        return [((await pace.enter(size)).at, size) for size in sizes]

    return asyncio.run(play())


LIMITS = st.none() | st.integers(1, 50)


@given(st.lists(st.integers(1, 80), max_size=40), LIMITS, LIMITS)
def test_no_window_holds_more_than_the_limits(
    sizes: list[int], requests: int | None, tokens: int | None
) -> None:
    found = entries(sizes, requests, tokens)
    for start, _ in found:
        window = [size for at, size in found if start <= at < start + WINDOW_S - 0.001]
        assert requests is None or len(window) <= requests
        # One that is larger than the limit goes alone.
        assert tokens is None or sum(window) <= tokens or len(window) == 1


@given(st.lists(st.integers(1, 80), max_size=40), LIMITS, LIMITS)
def test_nobody_waits_longer_than_a_window(
    sizes: list[int], requests: int | None, tokens: int | None
) -> None:
    times = [at for at, _ in entries(sizes, requests, tokens)]
    for before, after in pairwise(times):
        assert 0 <= after - before <= WINDOW_S + 0.01


def test_without_limits_nobody_waits() -> None:
    assert {at for at, _ in entries([10**9] * 100, None, None)} == {1000.0}


def test_what_a_request_really_took_counts() -> None:
    clock = StoryClock()
    pace = RateLimiter(None, 100, clock)

    async def play() -> float:
        pace.settle(await pace.enter(10), 90)
        return (await pace.enter(20)).at

    assert asyncio.run(play()) >= 1000 + WINDOW_S
