"""Reaching the server from a command, with the client imported late."""

import math
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuyard.client.sync import Client


def connect(*, start: bool = True, patient: bool = False) -> "Client":
    """A client; with `start`, the embedded server is started when none runs.

    With `patient`, for what is followed, it waits for a server that goes away, and says
    so.
    """
    from gpuyard.cli.slow_server import told_when_slow
    from gpuyard.client.sync import Client

    if patient:
        return Client(
            start=start, patience_s=math.inf, tell=_tell, asking=told_when_slow
        )
    return Client(start=start, asking=told_when_slow)


def _tell(text: str) -> None:
    sys.stderr.write(f"gpuyard: {text}\n")
    sys.stderr.flush()


@contextmanager
def reading() -> Generator[Callable[[str, dict[str, Any]], Any]]:
    """A function that reads the JSON at a path, `get(path, params)`; without httpx
    where the server is on this machine.

    The embedded server is started when none runs.
    """
    from gpuyard.cli.slow_server import told_when_slow
    from gpuyard.client import light
    from gpuyard.client.connection import find_server

    address = find_server()
    if light.can_read(address):
        reader = light.Reader(address)

        def get(path: str, params: dict[str, Any]) -> Any:
            with told_when_slow(address):
                return reader.get(path, params)

        try:
            yield get
        finally:
            reader.close()
        return
    from gpuyard.client.calls import Call
    from gpuyard.client.sync import Client

    with Client(address, asking=told_when_slow) as client:
        yield lambda path, params: client.call(
            Call("GET", path, lambda answer: answer, params)
        )
