"""How often Python's threads may take over the interpreter from each other."""

import sys

_GIL_INTERVAL_S = 0.00005


def shorten_gil_interval() -> None:
    """Let threads take the interpreter soon, even beside a busy event loop.

    A thread that waits for the interpreter starts to count this interval again whenever
    the running thread releases it for a moment, as an event loop does all the time.
    With the default (5 ms), a commit beside a busy event loop waited for seconds.
    """
    sys.setswitchinterval(_GIL_INTERVAL_S)
