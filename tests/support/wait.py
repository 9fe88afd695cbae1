"""Waiting for a condition, never for a fixed time."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T], timeout: float = 10.0, what: str = "the condition"
) -> T:
    """Poll `condition` until it is truthy and return its value; AssertionError after
    `timeout` seconds.

    It pauses as long as the condition took, so that a command that is asked again and
    again leaves the machine to what it waits for.
    """
    deadline = time.monotonic() + timeout
    while True:
        asked = time.monotonic()
        value = condition()
        if value:
            return value
        answered = time.monotonic()
        if answered > deadline:
            raise AssertionError(f"waited {timeout:g} s for {what}")
        time.sleep(max(0.01, answered - asked))


async def eventually(
    condition: Callable[[], T], what: str = "the condition", within_s: float = 10.0
) -> T:
    """`wait_until` for what happens on the running event loop, which goes on
    meanwhile.
    """
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {within_s:g} s for {what}")
        await asyncio.sleep(0.01)
    return value
