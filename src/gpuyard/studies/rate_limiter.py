"""Limit the requests and the tokens sent to an endpoint in any sixty seconds."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass

WINDOW_S = 60.0
# Less than this may be lost in the clock's rounding.
_LEAST_PAUSE_S = 0.001


class RequestClock:
    """Monotonic time and sleep, which tests replace."""

    def now(self) -> float:
        """Seconds from some moment on."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


@dataclass(slots=True)
class Ticket:
    """One admitted request: its time, and the number of tokens it counts for."""

    at: float
    tokens: int


class RateLimiter:
    """Delays requests so that every window of sixty seconds keeps the limits.

    Requests are admitted in order of arrival. A request with more tokens than the limit
    is sent alone, because it could never be sent otherwise.
    """

    def __init__(
        self,
        requests_per_minute: int | None,
        tokens_per_minute: int | None,
        clock: RequestClock,
    ) -> None:
        self._requests = requests_per_minute
        self._tokens = tokens_per_minute
        self._clock = clock
        self._past: deque[Ticket] = deque()
        self._door = asyncio.Lock()

    async def enter(self, tokens: int) -> Ticket:
        """Wait until a request of about `tokens` tokens may be sent."""
        async with self._door:
            while (pause := self._pause(tokens)) > 0:
                await self._clock.sleep(pause)
            ticket = Ticket(self._clock.now(), tokens)
            if self._requests or self._tokens:
                self._past.append(ticket)
            return ticket

    def settle(self, ticket: Ticket, tokens: int) -> None:
        """Record how many tokens a request took, if more than estimated.

        The estimate stays as a minimum, because some endpoints count by it.
        """
        ticket.tokens = max(ticket.tokens, tokens)

    def _pause(self, tokens: int) -> float:
        """Return the seconds until the request may be sent; 0 means now."""
        now = self._clock.now()
        past = self._past
        while past and past[0].at + WINDOW_S <= now:
            past.popleft()
        count = len(past)
        spent = sum(ticket.tokens for ticket in past)
        until = now
        for ticket in past:
            if self._fits(count, spent, tokens):
                break
            count = count - 1
            spent = spent - ticket.tokens
            until = ticket.at + WINDOW_S
        return max(until - now, _LEAST_PAUSE_S) if until > now else 0.0

    def _fits(self, count: int, spent: int, tokens: int) -> bool:
        requests = self._requests is None or count < self._requests
        return requests and (
            self._tokens is None or count == 0 or spent + tokens <= self._tokens
        )
