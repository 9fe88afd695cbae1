"""Keeping under an endpoint's limits: so many requests and so many tokens in any sixty seconds."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass

WINDOW_S = 60.0
# Less than this may be lost in the clock's rounding.
_LEAST_PAUSE_S = 0.001


class Clock:
    """Monotonic time and waiting for it; tests put their own in its place."""

    def now(self) -> float:
        """Seconds from some moment on."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


@dataclass(slots=True)
class Ticket:
    """One request that was let in: when, and how many tokens it counts for."""

    at: float
    tokens: int


class Pace:
    """Lets requests in, in order of arrival, so that no window of sixty seconds holds more than the limits.

    A request of more tokens than the limit goes alone: it would never go otherwise.
    """

    def __init__(self, requests_per_minute: int | None, tokens_per_minute: int | None, clock: Clock) -> None:
        self._requests, self._tokens, self._clock = requests_per_minute, tokens_per_minute, clock
        self._past: deque[Ticket] = deque()
        self._door = asyncio.Lock()

    async def enter(self, tokens: int) -> Ticket:
        """Wait until a request of about so many tokens may go."""
        async with self._door:
            while (pause := self._pause(tokens)) > 0:
                await self._clock.sleep(pause)
            ticket = Ticket(self._clock.now(), tokens)
            if self._requests or self._tokens:
                self._past.append(ticket)
            return ticket

    def settle(self, ticket: Ticket, tokens: int) -> None:
        """What a request really took; endpoints that let requests in by their guess hold them to the guess."""
        ticket.tokens = max(ticket.tokens, tokens)

    def _pause(self, tokens: int) -> float:
        """Seconds until enough of the past has left the window; none when the request may go now."""
        now, past = self._clock.now(), self._past
        while past and past[0].at + WINDOW_S <= now:
            past.popleft()
        count, spent, until = len(past), sum(ticket.tokens for ticket in past), now
        for ticket in past:
            if self._fits(count, spent, tokens):
                break
            count, spent, until = count - 1, spent - ticket.tokens, ticket.at + WINDOW_S
        return max(until - now, _LEAST_PAUSE_S) if until > now else 0.0

    def _fits(self, count: int, spent: int, tokens: int) -> bool:
        requests = self._requests is None or count < self._requests
        return requests and (self._tokens is None or count == 0 or spent + tokens <= self._tokens)
