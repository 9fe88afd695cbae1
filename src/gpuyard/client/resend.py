"""When a call is sent again: a server that restarts is away for some seconds, and an
answer can be lost on its way.

A submission is worth waiting for, and so is a server that has answered before. A first
look at one that is not there is answered at once. After a call that has waited in vain,
the next ones hardly wait, or a program that makes many would take minutes to say so.
"""

import time
from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import Any

import httpx

from gpuyard.client.calls import Call
from gpuyard.client.connection import Address
from gpuyard.client.light import unreachable
from gpuyard.domain.errors import (
    GpuyardError,
    LedgerBusyError,
    RateLimitedError,
    UnreachableError,
)

PATIENCE_S = 10.0
# Enough to look for the server anew: another one may be there.
_GLANCE_S = 0.2
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
# What is told before a request has left: it may be sent again whatever it does.
# So may one that the server could not write, and said so.
_UNSENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    LedgerBusyError,
)
# No answer within the time for one is no lost answer: the server may still be at work
# on it.
_SLOW = (httpx.ReadTimeout, httpx.WriteTimeout)
# The server answers, but cannot serve this call just now.
AGAIN = (UnreachableError, LedgerBusyError, RateLimitedError)
Lost = httpx.HTTPError | UnreachableError | LedgerBusyError | RateLimitedError


class Known(Enum):
    """What a client knows of its server."""

    NOTHING = auto()
    ANSWERS = auto()
    AWAY = auto()  # it was waited for in vain


def pauses(patience_s: float) -> Iterator[float]:
    """Growing pauses in seconds, until `patience_s` have passed since the first was
    asked for.
    """
    until = time.monotonic() + patience_s
    pause = _FIRST_PAUSE_S
    while time.monotonic() + pause < until:
        yield pause
        pause = min(pause * 2, _LONGEST_PAUSE_S)


class Outage:
    """How long a server that is away is waited for: until nothing has come for
    `patience_s`. `tell` hears of an outage that lasts, and of its end. `in_vain`: it
    was waited for so long, and did not come back.
    """

    def __init__(self, patience_s: float, tell: Callable[[str], None] | None) -> None:
        self._patience_s = patience_s
        self._tell = tell
        self._pauses: Iterator[float] | None = None
        self._is_told = False
        self.in_vain = False

    def pause(self, error: GpuyardError) -> float:
        """Seconds after which to ask again; raises the error when it has been long
        enough.
        """
        if self._pauses is None:
            self._pauses = pauses(self._patience_s)
        pause = next(self._pauses, None)
        if pause is None:
            self.in_vain = True
            raise error from None
        if self._tell and not self._is_told and pause >= _LONGEST_PAUSE_S:
            self._tell(f"{error.message} Waiting for it.")
            self._is_told = True
        return pause

    def back(self) -> None:
        """The server answers; what it says may still break off at once."""
        if self._tell and self._is_told:
            self._tell("The server is back.")
        self._is_told = False

    def end(self) -> None:
        """What was asked for has come."""
        self.back()
        self._pauses = None


class Resend:
    """One call and how often it has been sent. `known`: what its client knows of the
    server.
    """

    def __init__(
        self,
        call: Call[Any],
        known: Known,
        patience_s: float = PATIENCE_S,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._call = call
        waits_s = {
            Known.NOTHING: PATIENCE_S if call.submits else 0.0,
            Known.ANSWERS: patience_s,
            Known.AWAY: _GLANCE_S,
        }
        self._outage = Outage(waits_s[known], tell)
        # Whoever refuses a request because there are too many is there.
        self._limit = Outage(patience_s, tell)

    def pause(self, address: Address, error: Lost) -> float:
        """Seconds after which to send it again; raises the error as ours when that is
        not safe, or enough is enough.
        """
        if isinstance(error, RateLimitedError):
            return max(self._limit.pause(error), error.retry_after)
        problem: GpuyardError = (
            error if isinstance(error, AGAIN) else unreachable(address, error)
        )
        lost = not isinstance(error, _SLOW) and self._call.repeatable
        if lost or isinstance(error, _UNSENT):
            return self._outage.pause(problem)
        raise problem from None

    @property
    def in_vain(self) -> bool:
        """The server was waited for, and has not come back."""
        return self._outage.in_vain

    def end(self) -> None:
        """It was answered."""
        self._outage.end()


def broken_off(address: Address) -> UnreachableError:
    """A stream ended before the server said so."""
    return UnreachableError(f"The server at {address.url} is going away.")
