"""Says that the server is slow to answer, so that nobody waits without a word."""

import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress

from gpuyard.client.connection import Address, running_server, stopped_server
from gpuyard.config.paths import Home

AFTER_S = 10.0


@contextmanager
def told_when_slow(address: Address) -> Generator[None]:
    """While a request waits for the server at `address`: say so once it takes long.

    By a signal, because a thread for each request would take longer than the answer.
    """

    def tell(*_: object) -> None:
        line = f"gpuyard: {_words(address)}\n"
        # Whoever reads no messages wants the answer all the same.
        if sys.stderr is not None:
            with suppress(OSError):
                sys.stderr.write(line)
                sys.stderr.flush()

    try:
        before = signal.signal(signal.SIGALRM, tell)
    except ValueError:  # not the main thread
        yield
        return
    timer = signal.setitimer(signal.ITIMER_REAL, AFTER_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)


def _words(address: Address) -> str:
    home = Home.find()
    process = stopped_server(home)
    if process and running_server(home) == address:
        return (
            f"the server (process {process}) is stopped, so it answers nothing; `kill"
            f" -CONT {process}` lets it go on"
        )
    return (
        f"the server at {address.url} has not answered for {AFTER_S:g} s; waiting for"
        " it. In another terminal, `gpuyard doctor` may know why."
    )
