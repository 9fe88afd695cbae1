"""Reaching the server from a command, with the client imported late."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuyard.client.sync import Client


def connect(*, start: bool = True) -> "Client":
    """A client; with `start`, the embedded server is started when none runs."""
    from gpuyard.client.connection import find_server
    from gpuyard.client.sync import Client

    return Client(find_server(start=start))


@contextmanager
def reading() -> Generator[Callable[[str, dict[str, Any]], Any]]:
    """A function that reads the JSON at a path, `get(path, params)`; without httpx
    where the server is on this machine.

    The embedded server is started when none runs.
    """
    from gpuyard.client import light
    from gpuyard.client.connection import find_server

    address = find_server()
    if light.can_read(address):
        reader = light.Reader(address)
        try:
            yield reader.get
        finally:
            reader.close()
        return
    from gpuyard.client.calls import Call
    from gpuyard.client.sync import Client

    with Client(address) as client:
        yield lambda path, params: client.call(
            Call("GET", path, lambda answer: answer, params)
        )
