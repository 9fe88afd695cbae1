"""Ports for programs that take the number of one, and listen there a moment later."""

import random
import socket
from contextlib import suppress
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Slurm of the tests is above.
_FIRST = 10_000
_LAST = 20_000
_TRIES = 1000


def free_port(together: int = 1) -> int:
    """A free port, the first of so many `together`.

    The kernel gives it to no connection by itself, which would have it when the program
    comes.
    """
    first_of_kernel = int(_RANGE.read_text().split()[0])
    last = min(_LAST, first_of_kernel) - together
    dice = random.SystemRandom()
    for _ in range(_TRIES):
        port = dice.randint(_FIRST, last)
        if all(_is_free(port + more) for more in range(together)):
            return port
    raise AssertionError(f"no port from {_FIRST} to {last} is free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False
