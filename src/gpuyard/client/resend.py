"""When a call is sent again: a server that restarts is away for some seconds, and an
answer can be lost on its way.

A submission is worth waiting for, and so is a server that has answered before. A first
look at one that is not there is answered at once.
"""

import time
from collections.abc import Iterator
from typing import Any

import httpx

from gpuyard.client.calls import Call
from gpuyard.client.connection import Address
from gpuyard.client.light import unreachable
from gpuyard.domain.errors import GpuyardError, LedgerBusyError, UnreachableError

PATIENCE_S = 10.0
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
AGAIN = (UnreachableError, LedgerBusyError)
Lost = httpx.HTTPError | UnreachableError | LedgerBusyError


def pauses(patience_s: float) -> Iterator[float]:
    """Growing pauses in seconds, until `patience_s` have passed since the first was
    asked for.
    """
    until = time.monotonic() + patience_s
    pause = _FIRST_PAUSE_S
    while time.monotonic() + pause < until:
        yield pause
        pause = min(pause * 2, _LONGEST_PAUSE_S)


class Resend:
    """One call and how often it has been sent; `answered` says that this server has
    answered this client before.
    """

    def __init__(self, call: Call[Any], answered: bool) -> None:
        self._call = call
        self._pauses = pauses(PATIENCE_S if call.submits or answered else 0.0)

    def pause(self, address: Address, error: Lost) -> float:
        """Seconds after which to send it again; raises the error as ours when that is
        not safe, or enough is enough.
        """
        problem: GpuyardError = (
            error if isinstance(error, AGAIN) else unreachable(address, error)
        )
        lost = not isinstance(error, _SLOW) and self._call.repeatable
        pause = next(self._pauses, None) if lost or isinstance(error, _UNSENT) else None
        if pause is None:
            raise problem from None
        return pause
