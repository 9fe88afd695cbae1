"""Turns: how long a thread waits for the interpreter while another runs."""

import sys

_TURN_S = 0.00005


def share_the_interpreter() -> None:
    """Let threads have their turn soon, even beside a busy event loop.

    Python counts this time anew whenever the running thread lets go for a moment, as a loop does at each of its turns:
    with the default (5 ms) a commit beside a busy loop waited for seconds.
    """
    sys.setswitchinterval(_TURN_S)
