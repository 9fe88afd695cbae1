"""Waiting for a condition, never for a fixed time."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_SHORTEST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.1
_LONGEST_AFTER_A_QUESTION_S = 1.0


def wait_until(
    condition: Callable[[], T], timeout: float = 60.0, what: str = "the condition"
) -> T:
    """Poll `condition` until it is truthy and return its value; AssertionError after
    `timeout` seconds. A machine with other work may need a minute for anything, and
    only a failure waits for it.
    """
    began = time.monotonic()
    while True:
        asked = time.monotonic()
        value = condition()
        if value:
            return value
        answered = time.monotonic()
        if answered - began > timeout:
            raise AssertionError(f"waited {timeout:g} s for {what}")
        time.sleep(_pause_s(answered - began, answered - asked))


async def eventually(
    condition: Callable[[], T], what: str = "the condition", within_s: float = 60.0
) -> T:
    """`wait_until` for what happens on the running event loop, which goes on
    meanwhile.
    """
    began = time.monotonic()
    while not (value := condition()):
        waited_s = time.monotonic() - began
        if waited_s > within_s:
            raise AssertionError(f"waited {within_s:g} s for {what}")
        await asyncio.sleep(_pause_s(waited_s))
    return value


def _pause_s(waited_s: float, took_s: float = 0) -> float:
    """How long to leave the machine to what is waited for: longer, the longer that
    lasts, and twice as long as asking took (a command that is asked again and again
    would itself be what the machine is busy with).
    """
    with_the_wait = min(_LONGEST_PAUSE_S, waited_s / 20)
    with_the_question = min(_LONGEST_AFTER_A_QUESTION_S, 2 * took_s)
    return max(_SHORTEST_PAUSE_S, with_the_wait, with_the_question)
